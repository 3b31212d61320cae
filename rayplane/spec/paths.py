r"""What makes a text no path of a file or folder, whether there is one or not.

path_fault("runs/x")            ""
path_fault("~nobody-here/x")    "there is no home folder for ~nobody-here"
path_fault("a\0b")              "'a\x00b' cannot be a path"
"""

from __future__ import annotations

import errno
from pathlib import Path


def path_fault(text: str, local: bool = True) -> str:
    """Why no file or folder can have this path; empty when one can. `local`: on this machine."""
    if not text:
        return "is empty; name a file or folder"
    try:
        Path(text).expanduser().stat()
    except RuntimeError:
        return f"there is no home folder for {Path(text).parts[0]}; write the whole path"
    except ValueError:
        return f"{text!r} cannot be a path"
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return f"{text[:40]}… is longer than a path can be"
        if local and isinstance(error, PermissionError):
            return f"{text} lies where you may not look: {error.strerror}"
    return ""
