"""Machines from what other tools write of them: NCCL's topology XML, `nvidia-smi topo -m`, hwloc's XML, InfraGraph."""

from topologies.imports.reading import Imported, import_machine

__all__ = ["Imported", "import_machine"]
