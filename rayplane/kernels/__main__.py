"""python -m rayplane.kernels: build the C++ ops ahead of their first use."""

import sys

from rayplane.kernels.build import BuildError, built

if __name__ == "__main__":
    try:
        print(built())
    except BuildError as error:
        sys.exit(str(error))
