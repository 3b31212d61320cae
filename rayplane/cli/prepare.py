"""`rayplane prepare`: the text of a job is tokenised by the whole cluster before the job runs, which then finds it done.

job ──▶ sources ──▶ shards that are not there yet ──▶ Ray Data, `--workers` at once ──▶ CHECKPOINT_DIR/data ──▶ run
shards 412/1024 ━━━━━━━━━━━━━━━━━ 0:12:10
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import ray
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rayplane.cli.screen import say, screen, stdout_to_stderr
from rayplane.cli.words import as_json, count
from rayplane.errors import RayplaneError
from rayplane.runtime.ray import connect
from rayplane.spec.load import load_model, load_training
from rayplane.spec.tokenizer import data_section
from rayplane.train.data import open_dataset

LINE_EVERY_S = 10.0
"""Where nobody sees a bar."""


def prepare(
    job: Annotated[Path, typer.Argument(help="A job file.")],
    workers: Annotated[int, typer.Option(min=0, help="Processes that tokenise at once; 0 is one per CPU of the cluster.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object on stdout; everything else goes to stderr.")] = False,
) -> None:
    """Tokenise a job's text ahead of training, on a Ray cluster. What an earlier call has done is not done again."""
    with stdout_to_stderr() if json else nullcontext(), ExitStack() as closing:
        console = screen(stderr=json)
        result = _prepare(job, Spread(workers, console, closing))
        say(
            console,
            f"{result['name']}: {count(result['samples'])} samples of {result['seq_len']} tokens, "
            f"{result['holdout_samples']} held-out ones to measure; {result['shards_built']} shards made in {result['folder']}",
        )
    if json:
        typer.echo(as_json(result))


@dataclass
class Spread:
    """Makes shards on a Ray cluster, which it joins only when there is one to make. `built` counts them."""

    workers: int
    console: Console
    closing: ExitStack
    built: int = field(default=0, init=False)

    def __call__(self, build: Callable[[int], str], numbers: Sequence[int]) -> Iterator[str]:
        """What went wrong with each shard, as it gets done."""
        if not numbers:
            return
        spread = _ray_data()
        if not ray.is_initialized():
            self.closing.callback(ray.shutdown)
            connect()
        with shards_shown(self.console, len(numbers)) as advance:
            for trouble in spread(build, numbers, self.workers):
                yield trouble
                self.built += 1
                advance()


def _ray_data() -> Callable[[Callable[[int], str], Sequence[int], int], Iterator[str]]:
    """Ray Data brings pandas: a second, and a package, that no other command needs."""
    try:
        from rayplane.runtime.ray.spread import spread  # noqa: PLC0415
    except ImportError as error:
        raise RayplaneError(f"rayplane prepare needs Ray Data ({error}); pip install 'ray[data]'") from error
    return spread


def _prepare(path: Path, mapper: Spread) -> dict[str, Any]:
    job = load_training(path, "prepare")
    data, folder = data_section(job), Path(job.train.checkpoint.dir).expanduser().absolute() / "data"
    dataset = open_dataset(data, Path(), folder, load_model(job.model).vocab, mapper=mapper)
    return {
        "name": job.name,
        "samples": dataset.num_samples,
        "seq_len": data.seq_len,
        "holdout_samples": dataset.num_holdout if data.holdout else 0,
        "shards_built": mapper.built,
        "fingerprint": dataset.fingerprint,
        "folder": str(folder),
    }


@contextmanager
def shards_shown(console: Console, total: int) -> Iterator[Callable[[], None]]:
    """A function to call for each shard that is done: a bar on a terminal, now and then a line elsewhere."""
    if console.is_terminal:
        columns = (TextColumn("shards"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(elapsed_when_finished=True))
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=total)
            yield lambda: bar.advance(task)
        return
    done, shown_s = 0, time.monotonic()

    def advance() -> None:
        nonlocal done, shown_s
        done += 1
        if done == total or time.monotonic() - shown_s >= LINE_EVERY_S:
            shown_s = time.monotonic()
            say(console, f"shards {done}/{total}")

    yield advance
