"""rayplane trains and serves transformer models cut by tensor, sequence, pipeline, context and data parallelism, on Ray."""

__version__ = "0.1.0"
