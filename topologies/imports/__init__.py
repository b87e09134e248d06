"""Machines from what other tools write of them: NCCL's topology XML, `nvidia-smi topo -m`, hwloc's XML.

None of these says how fast a device computes or how much memory it has: a type of device from `topologies/devices`
does, found by its PCI identity or named.
"""

from topologies.imports.reading import Imported, import_machine

__all__ = ["Imported", "import_machine"]
