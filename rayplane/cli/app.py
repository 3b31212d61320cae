"""The `rayplane` command: its subcommands, and how errors leave it.

RayplaneError    its message, its exit code
anything else    one line, exit code 1; the traceback goes to a file
--json           the last line on stdout is JSON then too: {"state": "failed", "message", "exit_code"}
"""

from __future__ import annotations

import functools
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

import rayplane
from rayplane.cli.batch import batch
from rayplane.cli.calibrate import calibrate
from rayplane.cli.catalog import catalog
from rayplane.cli.check import check
from rayplane.cli.explain import explain
from rayplane.cli.export import export
from rayplane.cli.layout import layout_set, layout_show
from rayplane.cli.nodes import nodes
from rayplane.cli.orders import pause, resume, scale, stop
from rayplane.cli.plan import plan
from rayplane.cli.prepare import prepare
from rayplane.cli.replay import replay
from rayplane.cli.run import run
from rayplane.cli.status import status
from rayplane.cli.submit import submit
from rayplane.cli.trace import trace
from rayplane.cli.validate import validate
from rayplane.cli.words import as_json
from rayplane.control.machine import INTERRUPTED
from rayplane.errors import RayplaneError
from rayplane.runtime.patience import GaveUp

P = ParamSpec("P")
STDOUT, STDERR = 1, 2

BUG = """rayplane failed in a way that it should not: {error}
The traceback is in {path}"""


def in_words(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with what it raises turned into a message and an exit code."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            _check_here()
            command(*args, **kwargs)
        except RayplaneError as error:
            message, exit_code = str(error), error.exit_code
        except (KeyboardInterrupt, GaveUp):
            message, exit_code = "stopped", INTERRUPTED
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            message, exit_code = BUG.format(error=f"{type(error).__name__}: {error}", path=_write_traceback()), 1
        else:
            return
        typer.echo(message, err=True)
        if kwargs.get("json"):
            typer.echo(as_json({"state": "failed", "message": message, "exit_code": exit_code}))
        raise typer.Exit(exit_code)

    return guarded


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
for command in (run, batch, plan, explain, calibrate, trace, check, prepare, status, nodes, validate, catalog, export):
    app.command()(in_words(command))
for order in (submit, pause, resume, stop, scale, replay):
    app.command()(in_words(order))
layout = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show how a training job lies on its devices, or move it.")
layout.command("set")(in_words(layout_set))
layout.command("show")(in_words(layout_show))
app.add_typer(layout, name="layout")


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        typer.echo(f"rayplane {rayplane.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Lay a transformer out over the devices of a Ray cluster, train it there, and watch it."""


def main() -> None:
    """Entry point of the `rayplane` script."""
    _mend_streams()
    app()


def _mend_streams() -> None:
    """Open what was closed of descriptors 0 to 2, or a file of ours becomes one of them; let no character be refused."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _check_here() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise RayplaneError("the folder in which rayplane runs is gone; change to one that is there") from None


def _write_traceback() -> str:
    fd, path = tempfile.mkstemp(prefix="rayplane-", suffix=".log")
    with os.fdopen(fd, "w") as file:
        file.write(traceback.format_exc())
    return path
