"""`rayplane batch`: the requests of a file, asked of a service that runs, or of one that lives as long as they take.

place ─▶ census of PROMPTS and OUT ─▶ (the service starts) ─▶ Asker ─▶ OUT
"""

from __future__ import annotations

import math
import resource
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from rayplane.api.batch.answers import open_answers
from rayplane.api.batch.asker import Conditions
from rayplane.api.batch.lines import Terms
from rayplane.cli.batch_place import Wish, place_of
from rayplane.cli.batch_work import Order, Work
from rayplane.cli.fleet import Options, Runtime
from rayplane.cli.screen import screen, stdout_to_stderr
from rayplane.cli.words import as_json

MAX_OUT = 4096
OTHER_FILES = 256
"""Descriptors that are not connections to the service."""
PATIENCE_S = 300.0
"""How long a service that somebody else runs may be gone. Our own is started again, or ends."""


def batch(
    prompts: Annotated[Path, typer.Argument(help="Requests, one on each line: OpenAI's batch form, {prompt: …} or {messages: […]}.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Answers, in OpenAI's batch form; what is there is not asked again.")],
    job: Annotated[Path | None, typer.Option("--job", help="A job that serves; it is started for the batch.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="A service that runs, instead.")] = None,
    api_key_file: Annotated[Path | None, typer.Option("--api-key-file", help="A file with a key of that service.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="What is asked, whatever lines say. Alone, what is started: pypi://PACKAGE, a .gguf file, a folder."
        ),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests at a time; by default as many as the engines take.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of an answer at most, for lines that do not say.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="The temperature, for lines that do not say.")] = None,
    runtime: Annotated[Runtime, typer.Option(help="Who starts the ranks: a Ray cluster, or this process.")] = Runtime.RAY,
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object on stdout; everything else goes to stderr.")] = False,
) -> None:
    """Ask all requests of a file, and write the answers as they come. The same command goes on where an earlier one was stopped."""
    with stdout_to_stderr() if json else nullcontext():
        place = place_of(Wish(job, url, api_key_file, model))
        terms = Terms(place.model, model is not None, max_tokens, temperature)
        conditions = Conditions(concurrency, _most(), place.drain_s, math.inf if place.job else PATIENCE_S)
        with open_answers(out, prompts) as answers:
            work = Work(Order(prompts, out, place, terms, conditions), answers, screen(stderr=True))
            final, exit_code = work.run(Options(runtime, fresh=False, profile=""))
    if json:
        typer.echo(as_json(final))
    raise typer.Exit(exit_code)


def _most() -> int:
    """Requests that may be out at a time: each has a connection."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OUT if soft == resource.RLIM_INFINITY else max(1, min(MAX_OUT, soft - OTHER_FILES))
