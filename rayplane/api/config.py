"""What an ingress is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

NO_REPLICA_S = 30.0


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Where the engine of a replica listens: HOST:PORT, or unix:PATH."""

    id: str
    address: str


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One ingress."""

    model: str
    """What requests call the model."""
    tokenizer: str
    """`bytes`, a .gguf file, a tokenizer.json or a Hugging Face folder, as an absolute path."""
    secret: str = field(repr=False)
    """What engines ask of whoever connects."""
    max_context: int
    """Tokens of a prompt with its answer."""
    run: str = ""
    """Label of the metrics; the model's name when left out."""
    ingress: str = "ingress"
    """This process' name in the engines' logs."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Everyone may ask when there are none."""
    replicas: tuple[ReplicaAddress, ...] = ()
    """At the start; the owner tells of others later."""
    max_queue: int = 256
    """Requests that may wait; one more is answered with 429."""
    deadline_s: float | None = None
    """A request that is not done by then is ended; never when None."""
    no_replica_s: float = NO_REPLICA_S
    """How long a request waits while no replica lives, at most."""
    max_body_bytes: int = 8_000_000
    drain_s: float = 30.0
    """How long what runs may go on after the order to stop."""
    stall_s: float = 0.9
    """A replica that is silent for so long is left."""
    vocab: int | None = None
    """Token ids that the model knows; as many as the tokenizer has when None."""
    end_tokens: tuple[int, ...] = ()
    """Ids that end a text beside the tokenizer's own."""
