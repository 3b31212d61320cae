"""What a machine says of its own devices, without Ray: GPUs by NVML, links by `nvidia-smi topo -m`; and a ClusterSpec made of it."""
