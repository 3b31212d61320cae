"""Training data: any rank reads any sample of the run by its index alone, so the data goes on unchanged under another layout.

    dataset = open_dataset(section, job_dir, checkpoint_dir / "data", vocab)
    tokens, targets = dataset.batch(range(step * global_batch + first, ...))       # [b, S] each, targets one token ahead
    dataset.holdout(i) for i in range(dataset.num_holdout)                         # never trained on

Text is tokenised once per host (tokens.py); token arrays are used as they are (arrays.py); the order is in order.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rayplane.errors import DataError
from rayplane.spec.job import DataSection
from rayplane.train.arrays import SUFFIXES, Tokens, open_array
from rayplane.train.documents import find_files
from rayplane.train.holdout import Holdout
from rayplane.train.order import Permutation, stable_hash
from rayplane.train.tokenizer import ByteTokenizer, open_tokenizer
from rayplane.train.tokens import Recipe, tokenised
from rayplane.train.windows import Run, Windows, divided, whole

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """The samples of a job. `fingerprint` is equal on two hosts only if they would train on the same tokens in the same order."""

    train: Windows
    kept_aside: Windows
    max_holdout: int
    seed: int
    fingerprint: str

    @property
    def num_samples(self) -> int:
        """Samples per epoch."""
        return len(self.train)

    def sample(self, index: int) -> Ints:
        """The seq_len + 1 tokens of sample `index` of the run, counted over all steps and epochs."""
        epoch, position = divmod(index, len(self.train))
        return self.train[Permutation.keyed(len(self.train), self.seed, epoch)[position]]

    def batch(self, indices: Iterable[int]) -> tuple[Ints, Ints]:
        """(inputs, targets) [b, S] of some samples."""
        rows = np.array([self.sample(i) for i in indices], dtype=np.int64).reshape(-1, self.train.seq_len + 1)
        return rows[:, :-1], rows[:, 1:]

    @property
    def num_holdout(self) -> int:
        """Held-out samples to measure."""
        return min(self.max_holdout, len(self.kept_aside))

    def holdout(self, index: int) -> Ints:
        """The seq_len + 1 tokens of held-out sample `index`; they are spread evenly over all that is held out."""
        return self.kept_aside[index * len(self.kept_aside) // self.num_holdout]


def open_dataset(section: DataSection, base: Path, cache: Path, vocab: int, timeout_s: float = 3600.0) -> Dataset:
    """The data that a job's section names; paths are relative to `base`. Tokenises text into the folder `cache` unless it is there,
    or waits up to `timeout_s` for the rank that does. DataError names file, reason and remedy."""
    files = find_files(section, base)
    arrays = tuple(f for f in files if f.suffix in SUFFIXES)
    texts = tuple(f for f in files if f.suffix not in SUFFIXES)
    tokenizer = open_tokenizer(section.tokenizer, base) if texts else ByteTokenizer()
    text = tokenised(Recipe(section, texts, arrays, tokenizer, vocab), cache, timeout_s)
    mapped = [open_array(path, section.dtype) for path in arrays]
    train, kept_aside = [whole(text.train, section.seq_len)], [whole(text.holdout, section.seq_len)]
    for number, array in enumerate(mapped):
        holdout = Holdout.of(section.holdout, stable_hash(section.seed, number))
        runs: tuple[Run, Run] = divided(array, section.seq_len, holdout)
        train.append(runs[0])
        kept_aside.append(runs[1])
    dataset = Dataset(
        Windows.of(train, section.seq_len),
        Windows.of(kept_aside, section.seq_len),
        section.holdout_samples,
        section.seed,
        _fingerprint(section, text.fingerprint, mapped),
    )
    _check_size(dataset, section, sum(map(len, [text.train, text.holdout, *mapped])))
    return dataset


def _check_size(dataset: Dataset, section: DataSection, num_tokens: int) -> None:
    need = f"a sample takes seq_len + 1 = {section.seq_len + 1} tokens"
    if not dataset.num_samples:
        raise DataError(
            f"train.data: too little to train on: {num_tokens} tokens in all, {section.holdout:g} of them held out, and {need}; "
            "give more data, or lower seq_len or holdout"
        )
    if section.holdout and not dataset.num_holdout:
        raise DataError(
            f"train.data.holdout: {section.holdout:g} of {num_tokens} tokens keeps no sample aside, for {need}; "
            "raise holdout, give more data, or set holdout: 0"
        )


def _fingerprint(section: DataSection, text: str, arrays: list[Tokens]) -> str:
    """Tells data sets apart without reading the arrays whole: by their sizes and ends."""
    digest = hashlib.blake2b(f"{text} {section.seq_len} {section.seed} {section.holdout}".encode(), digest_size=16)
    for array in arrays:
        digest.update(f"{len(array)}".encode() + array[:1024].tobytes() + array[-1024:].tobytes())
    return digest.hexdigest()
