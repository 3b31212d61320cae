"""F6, the command line: `rayplane run | plan | status | validate`.

exit code 0    done, or drained after SIGTERM or Ctrl-C
          1    the job failed
          2    the input is wrong, nothing was started
        130    interrupted before the last steps were saved
"""

import signal


def main() -> None:
    """Entry point of the `rayplane` script."""
    # What follows takes half a second to import, in which Ctrl-C has nothing to save and nothing to say.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rayplane.cli.app import main as command  # noqa: PLC0415

    signal.signal(signal.SIGINT, before)
    command()
