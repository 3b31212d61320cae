"""Ranks as threads of one process: nothing in the runtime reads a rank from a global, so a whole layout fits into one.

For checks and tests of small models; real jobs give each rank its own process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

import torch
import torch.distributed as dist

from rayplane.comm.clock import clock_for
from rayplane.comm.mesh import Mesh, connect
from rayplane.spec.layout import Layout

T = TypeVar("T")
TIMEOUT_S = 30.0


def run_ranks(layout: Layout, body: Callable[[Mesh], T], device: str = "cpu") -> list[T]:
    """Run `body` on every rank of a layout; returns the results in rank order, or raises the first failure.

    A rank that fails leaves its groups, which frees the others; one that is done stays until all are, for what it sent last may not
    have been read yet. On "cuda" rank i has GPU i.
    """
    torch.set_num_threads(1)
    store = dist.HashStore()
    meshes: list[Mesh] = []
    failures: list[BaseException] = []

    def rank(index: int) -> T:
        place = torch.device(device, index) if device == "cuda" else torch.device(device)
        if place.type == "cuda":
            torch.cuda.set_device(place)
        mesh = connect(layout, index, store, place, TIMEOUT_S, clock_for(place))
        meshes.append(mesh)
        try:
            return body(mesh)
        except BaseException as error:
            failures.append(error)  # The first in time: the others' follow from their peer's leaving.
            mesh.close()
            raise

    with ThreadPoolExecutor(layout.size, thread_name_prefix="rank") as threads:
        futures = [threads.submit(rank, i) for i in range(layout.size)]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            if failures:
                raise failures[0]
            for future in done:
                future.result()
            return [f.result() for f in futures]
        finally:
            for mesh in meshes:
                mesh.close()
