"""What `nvidia-smi topo -m` prints on machines of several kinds."""

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def matrix(head: list[str], rows: list[list[str]], legend: dict[str, str]) -> str:
    """As the command prints it: tabs, and an underlined head."""
    lines = ["\x1b[4m\t" + "\t".join(head) + "\x1b[0m", *("\t".join(row) for row in rows)]
    names = "".join(f"  {nic}: {name}\n" for nic, name in legend.items())
    return "\n".join(lines) + "\n" + LEGEND + (f"\nNIC Legend:\n\n{names}" if names else "")


def h100() -> str:
    """8 x H100 with NVSwitch, each beside a card of its own."""
    gpus, nics = [f"GPU{i}" for i in range(8)], [f"NIC{i}" for i in range(8)]

    def to_nic(a: int, b: int) -> str:
        return "PIX" if a == b else "NODE" if a // 4 == b // 4 else "SYS"

    cpus = [["0-55,112-167", "0", "N/A"], ["56-111,168-223", "1", "N/A"]]
    rows = [
        [f"GPU{i}", *(" X " if i == j else "NV18" for j in range(8)), *(to_nic(i, j) for j in range(8)), *cpus[i // 4]]
        for i in range(8)
    ]
    rows += [[f"NIC{i}", *(to_nic(i, j) for j in range(8)), *(" X " if i == j else to_nic(i, j) for j in range(8))] for i in range(8)]
    return matrix([*gpus, *nics, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"], rows, {n: f"mlx5_{i}" for i, n in enumerate(nics)})


A100_PAIRS = """\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tSYS\tSYS\tPXB\t0-31\t0
GPU1\tNV12\t X \tSYS\tSYS\tPXB\t0-31\t0
GPU2\tSYS\tSYS\t X \tNV12\tSYS\t32-63\t1
GPU3\tSYS\tSYS\tNV12\t X \tSYS\t32-63\t1
mlx5_0\tPXB\tPXB\tSYS\tSYS\t X
"""
"""4 x A100 PCIe, two bridges, as a driver printed it that named cards in the head."""

CROSSED_PAIRS = """        GPU0  GPU1  GPU2  GPU3
GPU0     X    PHB   NV4   PHB
GPU1    PHB    X    PHB   NV4
GPU2    NV4   PHB    X    PHB
GPU3    PHB   NV4   PHB    X
"""

GB200 = """\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tNIC2\tNIC3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tNV18\tNV18\tNODE\tNODE\tSYS\tSYS\t0-71\t0\t2
GPU1\tNV18\t X \tNV18\tNV18\tNODE\tNODE\tSYS\tSYS\t0-71\t0\t10
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tSYS\tNODE\tNODE\t72-143\t1\t18
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tSYS\tNODE\tNODE\t72-143\t1\t26
NIC0\tNODE\tNODE\tSYS\tSYS\t X \tNODE\tSYS\tSYS
NIC1\tNODE\tNODE\tSYS\tSYS\tNODE\t X \tSYS\tSYS
NIC2\tSYS\tSYS\tNODE\tNODE\tSYS\tSYS\t X \tNODE
NIC3\tSYS\tSYS\tNODE\tNODE\tSYS\tSYS\tNODE\t X

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
  NIC2: mlx5_4
  NIC3: mlx5_5
"""
"""A tray of an NVL72."""

L40S = """\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNODE\tN/A\t0-47\t0\tN/A
GPU1\tNODE\t X \tPHB\t0-47\t0\tN/A
NIC0\tNODE\tPHB\t X

NIC Legend:

  NIC0: bnxt_re0
"""

ONE = """\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \t0-15\t0\t\tN/A
"""

ERROR = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.90\n"
