"""The `rayplane` command: its subcommands, and how errors leave it.

RayplaneError    its message, its exit code
anything else    one line, exit code 1; the traceback goes to a file
"""

from __future__ import annotations

import functools
import os
import tempfile
import traceback
from collections.abc import Callable
from typing import Annotated, ParamSpec

import typer

import rayplane
from rayplane.cli.check import check
from rayplane.cli.export import export
from rayplane.cli.plan import plan
from rayplane.cli.prepare import prepare
from rayplane.cli.run import run
from rayplane.cli.status import status
from rayplane.cli.validate import validate
from rayplane.control.machine import INTERRUPTED
from rayplane.errors import RayplaneError
from rayplane.runtime.patience import GaveUp

P = ParamSpec("P")

BUG = """rayplane failed in a way that it should not: {error}
The traceback is in {path}"""


def in_words(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with what it raises turned into a message and an exit code."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except RayplaneError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(error.exit_code) from None
        except (KeyboardInterrupt, GaveUp):
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            typer.echo(BUG.format(error=f"{type(error).__name__}: {error}", path=_write_traceback()), err=True)
            raise typer.Exit(1) from None

    return guarded


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
for command in (run, plan, check, prepare, status, validate, export):
    app.command()(in_words(command))


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
    app()


def _write_traceback() -> str:
    fd, path = tempfile.mkstemp(prefix="rayplane-", suffix=".log")
    with os.fdopen(fd, "w") as file:
        file.write(traceback.format_exc())
    return path
