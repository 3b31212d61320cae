"""NVML asked device by device, through the package nvidia-ml-py where it is installed.

init ──▶ each device: name, uuid, memory, MIG mode, fabric ──▶ shutdown          a question that a device cannot answer: None
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rayplane.runtime.hardware.gpu import Gpu, from_nvml

PACKAGE = "pynvml"


def read() -> tuple[Gpu, ...]:
    """The GPUs of this machine; none without the package, a driver or a GPU."""
    if find_spec(PACKAGE) is None:
        return ()
    nvml: Any = import_module(PACKAGE)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        return tuple(from_nvml(_record(nvml, index)) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def _record(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    questions: dict[str, Callable[[], Any]] = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "uuid": lambda: nvml.nvmlDeviceGetUUID(handle),
        "memory": lambda: _memory(nvml, handle),
        "mig": lambda: nvml.nvmlDeviceGetMigMode(handle),
        "fabric": lambda: _fabric(nvml, handle),
    }
    return {"index": index, **{name: _answer(nvml, question) for name, question in questions.items()}}


def _answer(nvml: Any, question: Callable[[], Any]) -> Any:
    try:
        return question()
    except (nvml.NVMLError, AttributeError):  # old drivers lack the call, old packages its name
        return None


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    answer = nvml.nvmlDeviceGetMemoryInfo(handle)
    return answer.total, answer.used


def _fabric(nvml: Any, handle: Any) -> tuple[bytes, int, int, int]:
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return bytes(info.clusterUuid), info.status, info.cliqueId, info.state
