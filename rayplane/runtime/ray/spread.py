"""Independent pieces of work, done by many processes of the cluster at once, by Ray Data.

numbers ──▶ a block each ──▶ pool of `workers` actors, one CPU each, that hold `build` ──▶ what it returned, as it gets done

Ray Data starts an actor that died anew and gives its piece to another. Only numbers and messages travel: what is built goes to disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext, from_items
from ray.exceptions import RayError

from rayplane.errors import RayplaneError
from rayplane.runtime.ray.calls import brief

WAIT_FOR_ACTORS_S = 120
"""How long the first actor may take to come up, where others use the CPUs."""
ONE_THREAD = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS"), "1")
"""An actor has one CPU; thread pools in it should know."""


class Worker:
    """An actor of the pool: it gets `build` once, not with every number."""

    def __init__(self, build: Callable[[int], str]):
        self._build = build

    def __call__(self, row: dict[str, int]) -> dict[str, str]:
        """Do one piece of work."""
        return {"said": self._build(int(row["item"]))}


def spread(build: Callable[[int], str], numbers: Sequence[int], workers: int) -> Iterator[str]:
    """What `build` returns for each number, in any order, from at most `workers` processes of the connected cluster (0: one per CPU).

    RayplaneError when Ray cannot do it. A number may be built twice when an actor dies.
    """
    cpus = int(ray.cluster_resources().get("CPU", 1))
    size = min(workers or cpus, cpus, len(numbers))
    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.wait_for_min_actors_s = WAIT_FOR_ACTORS_S
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    items: Any = from_items(list(numbers), override_num_blocks=len(numbers))
    done = items.map(
        Worker,
        fn_constructor_args=(build,),
        compute=ActorPoolStrategy(min_size=1, max_size=size, initial_size=size, max_tasks_in_flight_per_actor=1),
        num_cpus=1,
        runtime_env={"env_vars": ONE_THREAD},
    )
    try:
        for row in done.iter_rows():
            yield row["said"]
    except (RayError, RuntimeError, TimeoutError) as error:
        raise RayplaneError(f"the cluster did not do the work: {brief(error)}") from error
