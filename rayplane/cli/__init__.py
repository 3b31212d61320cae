"""F6, the command line: `rayplane run | plan | status | validate`.

exit code 0    done, or drained after SIGTERM or Ctrl-C
          1    the job failed
          2    the input is wrong, nothing was started
        130    interrupted before the last steps were saved
"""

from rayplane.cli.app import main

__all__ = ["main"]
