"""`python -m rayplane` is the `rayplane` command."""

from rayplane.cli import main

main()
