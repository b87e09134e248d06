"""Descriptions written for the tests, in the three formats that can be imported, and where real ones may be."""

from collections import Counter
from pathlib import Path

import pytest

REAL = Path(__file__).resolve().parents[3] / "shared" / "topologies-real"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="../shared/topologies-real is not here")

NCCL = """<!-- two sockets, four GPUs: two that are linked with each other, two on a switch of NVLinks -->
<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x1db1"
           link_speed="8.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="70"><nvlink target="0000:12:00.0" count="2" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x1db1" link_speed="" link_width="0">
        <gpu dev="0" sm="70"><nvlink target="0000:11:00.0" count="2" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x020700" link_speed="8 GT/s" link_width="16">
        <nic><net name="mlx5_0"/></nic>
      </pci>
    </pci>
    <pci busid="0000:14:00.0" class="0x010802" link_speed="8 GT/s" link_width="4"/>
  </cpu>
  <cpu numaid="-1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:20:00.0" class="0x030200" vendor="0x10de" device="0x1db1"
         link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="2" sm="70">
        <nvlink target="0000:c0:00.0" count="3" tclass="0x068000"/>
        <nvlink target="0000:c1:00.0" count="3" tclass="0x068000"/>
      </gpu>
    </pci>
    <pci busid="0000:21:00.0" class="0x030200" vendor="0x10de" device="0x1db1" link_speed="16 GT/s" link_width="16">
      <gpu dev="3" sm="70"><nvlink target="0000:c0:00.0" count="6" tclass="0x068000"/></gpu>
    </pci>
  </cpu>
</system>
"""

PROVIDER = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0003:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0103:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0004:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
    </pci>
  </cpu>
</system>
"""

MATRIX = """\x1b[4m        GPU0    GPU1    GPU2    GPU3    GPU4    NIC0    CPU Affinity    NUMA Affinity\x1b[0m
GPU0     X      PIX     PXB     SYS     SYS     PXB     0-7     0
GPU1    PIX      X      PXB     SYS     SYS     PXB     0-7     0
GPU2    PXB     PXB      X      SYS     SYS     PIX     0-7     0
GPU3    SYS     SYS     SYS      X      PHB     SYS     8-15    1
GPU4    SYS     SYS     SYS     PHB      X      SYS     8-15    1
NIC0    PXB     PXB     PIX     SYS     SYS      X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes

NIC Legend:

  NIC0: mlx5_0
"""

NVLINKS = """        GPU0    GPU1    GPU2    GPU3    CPU Affinity
GPU0     X      NV12    NV12    NV12    0-31
GPU1    NV12     X      NV12    NV12    0-31
GPU2    NV12    NV12     X      NV12    32-63
GPU3    NV12    NV12    NV12     X      32-63
"""

BRIDGES = """        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV12    SYS     SYS     0-31,64-95      0
GPU1    NV12     X      SYS     SYS     0-31,64-95      0
GPU2    SYS     SYS      X      NV12    32-63,96-127    1
GPU3    SYS     SYS     NV12     X      32-63,96-127    1
"""

VIRTUAL = """        GPU0    GPU1    NIC0    NIC1    NIC2    CPU Affinity    NUMA Affinity
GPU0     X      NV18    PIX     SYS     SYS     0-79    0
GPU1    NV18     X      SYS     PIX     SYS     0-79    0
NIC0    PIX     SYS      X      SYS     SYS
NIC1    SYS     PIX     SYS      X      SYS
NIC2    SYS     SYS     SYS     SYS      X
"""

NO_PEERS = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:11:00.0" class="0x030000" link_speed="16 GT/s" link_width="16"><gpu dev="0"/></pci>
      <pci busid="0000:12:00.0" class="0x030000" link_speed="16 GT/s" link_width="16"><gpu dev="1"/></pci>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:21:00.0" class="0x030000" link_speed="16 GT/s" link_width="16"><gpu dev="2"/></pci>
  </cpu>
</system>
"""


def rocm(count: int, links: dict[tuple[int, int], int]) -> str:
    """Return what rocm-smi prints for GPUs of two processors; `links` has the weight of every pair that xGMI joins."""

    def table(title: str, cell) -> str:
        rows = [f"GPU{i}   " + "  ".join(cell((min(i, j), max(i, j))) if i != j else "0" for j in range(count))
                for i in range(count)]  # fmt: skip
        return f"{'=' * 30} {title} between two GPUs {'=' * 30}\n       {names}\n" + "\n".join(rows) + "\n\n"

    names = "   ".join(f"GPU{i}" for i in range(count))
    nodes = "".join(
        f"GPU[{i}]\t\t: (Topology) Numa Node: {i * 2 // count}\nGPU[{i}]\t\t: (Topology) Numa Affinity: 0\n"
        for i in range(count)
    )
    return (
        f"{'=' * 28} ROCm System Management Interface {'=' * 28}\n"
        + table("Weight", lambda pair: str(links.get(pair, 40)))
        + table("Hops", lambda pair: "1" if pair in links else "2")
        + table("Link Type", lambda pair: "XGMI" if pair in links else "PCIE")
        + f"{'=' * 40} Numa Nodes {'=' * 40}\n{nodes}{'=' * 36} End of ROCm SMI Log {'=' * 36}\n"
    )


HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" gp_index="1">
    <object type="Package" os_index="0" gp_index="2">
      <object type="Bridge" gp_index="10" bridge_type="0-1">
        <object type="Bridge" gp_index="11" bridge_type="1-1"
                pci_type="0604 [10b5:8747] [0000:0000] ca" pci_link_speed="15.753846">
          <object type="PCIDev" gp_index="12" pci_type="0302 [10de:15f9] [10de:116b] a1" pci_link_speed="15.753846">
            <object type="OSDev" gp_index="13" name="cuda0" osdev_type="5"/>
          </object>
          <object type="PCIDev" gp_index="14" pci_type="0302 [10de:15f9] [10de:116b] a1" pci_link_speed="7.876923">
            <object type="OSDev" gp_index="15" name="nvml1" osdev_type="5"/>
          </object>
        </object>
        <object type="Bridge" gp_index="16" bridge_type="1-1"
                pci_type="0604 [8086:2f02] [0000:0000] 02" pci_link_speed="0.000000">
          <object type="PCIDev" gp_index="17" pci_type="0300 [102b:0532] [00d9:0062] 0a" pci_link_speed="0.000000"/>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1" gp_index="3">
      <object type="Bridge" gp_index="20" bridge_type="0-1">
        <object type="Bridge" gp_index="21" bridge_type="1-1"
                pci_type="0604 [8086:2f02] [0000:0000] 02" pci_link_speed="0.5">
          <object type="PCIDev" gp_index="22" pci_type="0302 [10de:15f9] [10de:116b] a1" pci_link_speed="0.000000"/>
        </object>
      </object>
    </object>
  </object>
  <distances2hetero nbobjs="3" kind="25" name="NVLinkBandwidth">
    <indexes length="22">OSDev:13 OSDev:15 Package:2 </indexes>
    <u64values length="30">1000000 40000 20000 40000 1000000 </u64values>
    <u64values length="30">0 20000 0 0 </u64values>
  </distances2hetero>
</topology>
"""

HOST = """
  - name: host
    components:
      - {name: cpu, count: 1, choice: cpu, cpu: {}}
      - {name: xpu, count: 4, choice: xpu, xpu: {}}
      - {name: nvsw, count: 2, choice: switch, switch: {}}
      - {name: plx, count: 2, choice: switch, switch: {}}
      - {name: card, count: 2, choice: device, device: {}}
      - {name: ram, count: 1, choice: memory, memory: {}}
    links:
      - {name: pcie, description: PCI Express Gen4 x16}
      - {name: nvlink, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 60}}}
      - {name: ddr}
    edges:
      - {ep1: {component: "cpu[0]"}, ep2: {component: "plx[:]"}, scheme: many2many, link: pcie}
      - {ep1: {component: "plx[0]"}, ep2: {component: "xpu[:2]"}, scheme: many2many, link: pcie}
      - {ep1: {component: "plx[1]"}, ep2: {component: "xpu[-2:]"}, scheme: many2many, link: pcie}
      - {ep1: {component: "xpu"}, ep2: {component: "nvsw"}, scheme: many2many, link: nvlink}
      - {ep1: {component: "plx"}, ep2: {component: "card[0:2].slot[0]"}, scheme: one2one, link: pcie}
      - {ep1: {component: "cpu"}, ep2: {component: "ram"}, scheme: one2one, link: ddr}
"""
CARD = """
  - name: card
    components:
      - {name: slot, count: 1, choice: custom, custom: {type: pcie}}
      - {name: port, count: 1, choice: port, port: {}}
    links: [{name: inside}]
    edges: [{ep1: {component: "slot[0]"}, ep2: {component: "port[0]"}, scheme: one2one, link: inside}]
"""
LEAF = """
  - name: leaf
    components:
      - {name: asic, count: 1, choice: cpu, cpu: {}}
      - {name: port, count: 4, choice: port, port: {}}
    links: [{name: ic}]
    edges: [{ep1: {component: asic}, ep2: {component: port}, scheme: many2many, link: ic}]
"""
BETWEEN = """
instances:
  - {name: host, device: host, count: 2}
  - {name: leaf, device: leaf, count: 1}
links:
  - name: eth
    physical:
      bandwidth: {choice: gigabits_per_second, gigabits_per_second: 200}
      latency: {choice: us, us: 1.5}
edges:
  - ep1: {instance: "host[0:2]", component: "card[0:2].port[0]"}
    ep2: {instance: "leaf[0]", component: "port[0:4]"}
    scheme: one2one
    link: eth
"""
INFRAGRAPH = f"name: cluster\ndevices:{HOST}{CARD}{LEAF}{BETWEEN}"


def links(machine):
    return {link.ends: (link.type, link.count) for link in machine.links}


def physical_links(machine):
    counts = Counter()
    for link in machine.links:
        counts[link.type] += link.count
    return counts


SAMPLES = {
    "cluster.yaml": INFRAGRAPH,
    "nccl.xml": NCCL,
    "provider.xml": PROVIDER,
    "matrix.txt": MATRIX,
    "nvlinks.txt": NVLINKS,
    "virtual.txt": VIRTUAL,
    "hwloc.xml": HWLOC,
}
