"""Many requests from a file, asked of a running service as fast as its engines take them, with the answers in another file."""
