"""Training data: any rank reads any sample of the run by its index alone, so the data goes on unchanged under another layout.

dataset = open_dataset(section, job_dir, checkpoint_dir / "data", vocab)
tokens, targets = dataset.batch(range(step * global_batch + first, ...))       # [b, S] each, targets one token ahead
dataset.starts(k)                                                              # where in sample k documents start
dataset.holdout(i) for i in range(dataset.num_holdout)                         # never trained on

sample k ──blend.py──▶ source, its sample number ──order.py──▶ window ──windows.py──▶ stream.py ──▶ mapped files (tokens.py)
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rayplane.errors import DataError
from rayplane.spec.job import DataSection
from rayplane.train.arrays import SUFFIXES
from rayplane.train.blend import Blend
from rayplane.train.documents import SourceFiles, find_sources
from rayplane.train.holdout import Holdout
from rayplane.train.indexed import SUFFIX
from rayplane.train.order import Permutation, stable_hash
from rayplane.train.stream import Shards, Stream
from rayplane.train.token_shards import Recipe
from rayplane.train.tokenizer import ByteTokenizer, open_tokenizer
from rayplane.train.tokens import Mapper, SourceTokens, in_turn, tokenised
from rayplane.train.windows import Run, Windows, divided, whole

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """The samples of a job. `fingerprint` is equal on two hosts only if they would train on the same tokens in the same order."""

    train: Windows
    kept_aside: Windows
    blend: Blend
    max_holdout: int
    seed: int
    fingerprint: str

    @property
    def num_samples(self) -> int:
        """Samples per epoch; of several sources, of each one epoch."""
        return len(self.train)

    def window(self, index: int) -> int:
        """The training window that is sample `index` of the run, counted over all steps and epochs."""
        source, number = self.blend[index]
        part = self.train.parts[source]
        epoch, position = divmod(number, len(part))
        return part[Permutation.keyed(len(part), _source_seed(self.seed, source), epoch)[position]]

    def sample(self, index: int) -> Ints:
        """The seq_len + 1 tokens of sample `index` of the run."""
        return self.train[self.window(index)]

    def starts(self, index: int) -> Ints:
        """Where documents start among the seq_len + 1 tokens of sample `index`, ascending; tokens before the first start end a
        document that began earlier. Token arrays other than .idx say nothing of documents."""
        return self.train.starts(self.window(index))

    def batch(self, indices: Iterable[int]) -> tuple[Ints, Ints]:
        """(inputs, targets) [b, S] of some samples."""
        rows = np.array([self.sample(i) for i in indices], dtype=np.int64).reshape(-1, self.train.seq_len + 1)
        return rows[:, :-1], rows[:, 1:]

    @property
    def num_holdout(self) -> int:
        """Held-out samples to measure; of several sources, as many of each as their weights ask."""
        sizes = [len(part) for part in self.kept_aside.parts]
        enough = range(1, self.max_holdout + 1)
        return bisect_right(enough, 0, key=lambda n: int(any(c > s for c, s in zip(self.blend.counts(n), sizes, strict=True))))

    def holdout(self, index: int) -> Ints:
        """The seq_len + 1 tokens of held-out sample `index`; they are spread evenly over all that is held out."""
        return self.kept_aside[self._held_window(index)]

    def holdout_starts(self, index: int) -> Ints:
        """Where documents start in held-out sample `index`."""
        return self.kept_aside.starts(self._held_window(index))

    def _held_window(self, index: int) -> int:
        source, number = self.blend[index]
        part, count = self.kept_aside.parts[source], self.blend.counts(self.num_holdout)[source]
        return part[number * len(part) // count]


def open_dataset(
    section: DataSection, base: Path, cache: Path, vocab: int, timeout_s: float = 3600.0, mapper: Mapper = in_turn
) -> Dataset:
    """The data that a job's section names; paths are relative to `base`. Tokenises text into the folder `cache` unless it is there,
    or waits up to `timeout_s` for the process that does. DataError names file, reason and remedy."""
    sources = find_sources(section, base)
    tokens = [tokenised(recipe, cache, timeout_s, mapper) for recipe in recipes(section, sources, base, vocab)]
    train, kept_aside = zip(*(_runs(section, number, source) for number, source in enumerate(tokens)), strict=True)
    dataset = Dataset(
        Windows.of(train, section.seq_len),
        Windows.of(kept_aside, section.seq_len),
        Blend.of([source.weight for source in sources]),
        section.holdout_samples,
        section.seed,
        _fingerprint(section, sources, tokens),
    )
    _check_size(dataset, section, sources, tokens)
    return dataset


def recipes(section: DataSection, sources: Iterable[SourceFiles], base: Path, vocab: int) -> list[Recipe]:
    """What is to be tokenised for each source. DataError without a tokenizer, or for arrays without documents."""
    split = [([f for f in s.files if f.suffix not in SUFFIXES], [f for f in s.files if f.suffix in SUFFIXES]) for s in sources]
    unmarked = [path for _, arrays in split for path in arrays if path.suffix != SUFFIX]
    if section.document_mask and unmarked:
        raise DataError(
            f"train.data.document_mask: {unmarked[0]} does not say where documents start; "
            "set document_mask: false, or give text or a Megatron .idx with its .bin"
        )
    tokenizer = open_tokenizer(section.tokenizer, base) if any(texts for texts, _ in split) else ByteTokenizer()
    return [Recipe(tuple(t), tuple(a), tokenizer, vocab, section.text_field, section.dtype) for t, a in split]


def _runs(section: DataSection, number: int, source: SourceTokens) -> tuple[list[Run], list[Run]]:
    """A source's windows to train on, and those held out."""
    seed = _source_seed(section.seed, number)
    sides = source.divided(Holdout.of(section.holdout, seed))
    train, kept_aside = ([whole(side, section.seq_len)] for side in sides)
    for place, shard in enumerate(source.arrays):
        holdout = Holdout.of(section.holdout, stable_hash(seed, place))
        runs = divided(Stream.whole(Shards.of([shard])), section.seq_len, holdout)
        train.append(runs[0])
        kept_aside.append(runs[1])
    return train, kept_aside


def _source_seed(seed: int, source: int) -> int:
    return stable_hash(seed, source) if source else seed


def _check_size(dataset: Dataset, section: DataSection, sources: tuple[SourceFiles, ...], tokens: list[SourceTokens]) -> None:
    need = f"a sample takes seq_len + 1 = {section.seq_len + 1} tokens"
    for number, source in enumerate(sources):
        count, field = tokens[number].num_tokens, f"train.data.path: {source.name}" if len(sources) > 1 else "train.data"
        if not dataset.train.parts[number]:
            raise DataError(
                f"{field}: too little to train on: {count} tokens in all, {section.holdout:g} of them held out, and {need}; "
                "give more data, or lower seq_len or holdout"
            )
        if section.holdout and not dataset.kept_aside.parts[number]:
            field = field if len(sources) > 1 else "train.data.holdout"
            raise DataError(
                f"{field}: {section.holdout:g} of {count} tokens keeps no sample aside, for {need}; "
                "raise holdout, give more data, or set holdout: 0"
            )


def _fingerprint(section: DataSection, sources: tuple[SourceFiles, ...], tokens: list[SourceTokens]) -> str:
    """Tells data sets apart without reading the arrays whole: by their sizes and ends."""
    digest = hashlib.blake2b(f"{section.seq_len} {section.seed} {section.holdout}".encode(), digest_size=16)
    for source, found in zip(sources, tokens, strict=True):
        digest.update(f" {source.weight if len(sources) > 1 else 1.0!r} {found.fingerprint}".encode())
        for shard in found.arrays:
            array = shard.tokens
            digest.update(f"{len(array)}".encode() + array[:1024].tobytes() + array[-1024:].tobytes())
    return digest.hexdigest()
