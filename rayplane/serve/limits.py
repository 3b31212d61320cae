"""How much a replica's scheduler may have at once.

a batch       at most max_batch_tokens tokens, of them at most prefill_tokens of prompts where others decode
the replica   at most max_sequences running, batches_in_flight batches on their way (one per pipeline stage)
the cache     num_blocks blocks of block_size tokens; a sequence of max_context tokens fits into it alone
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rayplane.errors import RayplaneError

LEAST = {"num_drafts": 0, "patience_s": 0, "prefix_cache": False}
"""Of the fields that may be less than 1."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of one replica. RayplaneError where they contradict each other."""

    num_blocks: int
    max_context: int
    """Most tokens of a sequence, prompt and output together."""
    block_size: int = 16
    max_sequences: int = 256
    max_batch_tokens: int = 2048
    prefill_tokens: int = 2048
    """Most prompt tokens in a batch that also decodes, or is one of several in flight; smaller means steadier gaps between tokens."""
    batches_in_flight: int = 1
    min_chunk_tokens: int = 64
    """Prompt tokens are shared among the batches in flight, but not in smaller parts than this."""
    prefix_cache: bool = True
    num_drafts: int = 0
    """Most tokens guessed ahead per sequence and step."""
    longest_match: int = 3
    """Most tokens at a text's end that are looked up in it for that."""
    patience_s: float = 30.0
    """A request overtakes those of the next lower priority that arrived up to this much earlier, none that have waited longer."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = LEAST.get(name, 1)
            if value < least:
                raise RayplaneError(f"{name}: {value} is too small; give at least {least}")
        if self.max_context > self.num_blocks * self.block_size:
            held = f"{self.num_blocks} blocks of {self.block_size} tokens hold {self.num_blocks * self.block_size}"
            raise RayplaneError(f"max_context: {self.max_context} tokens, but {held}; lower max_context or give the cache more memory")

    @property
    def blocks_per_sequence(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_context // self.block_size)
