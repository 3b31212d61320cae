"""What no single field shows: values that are fine alone and impossible together.

model     exactly one of preset, path and numbers; the numbers make a model; not one of the job's own checkpoints
train     warmup_steps <= steps, min_lr <= lr, memory_every <= every, seq_len <= max_seq, bytes fit the vocabulary, files are there,
          all paths weighted or none
layout    boundaries add up to the model, no rank is left without a head, a row or a sample; the runtime can execute it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rayplane.errors import Problem, SpecError
from rayplane.spec.checkpoint_path import checkpoint_at
from rayplane.spec.files import file_problems, is_prefix, path_problems
from rayplane.spec.job import CheckpointSection, DataSection, LayoutSection, TrainSection
from rayplane.spec.layout import unsupported
from rayplane.spec.model import ModelSpec
from rayplane.spec.model_section import ModelSection
from rayplane.spec.source import load_model
from rayplane.spec.tokenizer import tokenizer_problems

TOKENS = frozenset({".npy", ".bin", ".idx"})
"""Suffixes of files that hold tokens already."""


@dataclass(frozen=True, slots=True)
class Sections:
    """The parts of a job file that are right by themselves; None for those that are not, or are not there."""

    model: ModelSection | None
    train: TrainSection | None
    layout: LayoutSection | None
    local: bool
    """Whether the job's files must be on this machine: not when its cluster is described, for then it is planned from afar."""


def check_sections(sections: Sections) -> list[Problem]:
    """Every problem across fields, each with the dotted name of the field to change."""
    model, problems = checked_model(sections.model)
    train, layout = sections.train, sections.layout
    if sections.model and sections.model.dtype:
        message = f"{sections.model.dtype} is for jobs that serve; a job that trains says train.precision"
        problems.append(Problem(message, "model.dtype"))
    if train:
        problems += _optimizer(train) + _trace(train) + _memory(train.checkpoint)
        problems += _weights(train.data)
        faults = path_problems(train, sections.local)
        problems += faults
        if sections.local and not faults:
            problems += file_problems(train) + tokenizer_problems(train.data.tokenizer, sections.model if model else None)
    if train and model and not faults:
        problems += _fits(train, model) + _own(sections.model, train)
    if layout:
        problems += [Problem(reason, f"layout.{field}") for field, reason in unsupported(layout.layout(1))]
        problems += _batch(layout, train) + _sequence(layout, train) if train else []
        problems += _cut(layout, model) if model else []
    return problems


def checked_model(section: ModelSection | None) -> tuple[ModelSpec | None, list[Problem]]:
    """The model, or what is wrong with it; neither where there is no section."""
    try:
        return (load_model(section) if section else None), []
    except SpecError as e:
        return None, list(e.problems)


def _own(model: ModelSection | None, train: TrainSection) -> list[Problem]:
    """A job that starts from its own checkpoints would lose the one it starts from."""
    if model is None or model.path is None or "://" in model.path:
        return []
    folder, place = (Path(path).expanduser().absolute() for path in (train.checkpoint.dir, model.path))
    if not place.is_relative_to(folder) or checkpoint_at(place) is None:
        return []
    message = "lies in train.checkpoint.dir, from which old checkpoints go; a job goes on from its own by itself: name another dir"
    return [Problem(message, "model.path")]


def _optimizer(train: TrainSection) -> list[Problem]:
    optimizer, problems = train.optimizer, []
    if optimizer.warmup_steps > train.steps:
        message = f"{optimizer.warmup_steps} is more than train.steps ({train.steps}); the peak rate would never be reached"
        problems.append(Problem(message, "train.optimizer.warmup_steps"))
    if optimizer.min_lr > optimizer.lr:
        message = f"{optimizer.min_lr:g} is more than lr ({optimizer.lr:g}), from which the rate falls"
        problems.append(Problem(message, "train.optimizer.min_lr"))
    return problems


def _trace(train: TrainSection) -> list[Problem]:
    if train.trace is None or train.trace.first <= train.steps:
        return []
    message = f"{train.trace.first} is more than train.steps ({train.steps}); nothing would be recorded"
    return [Problem(message, "train.trace.first")]


def _memory(section: CheckpointSection) -> list[Problem]:
    problems = []
    if section.memory_every is not None and section.memory_every > section.every:
        message = f"{section.memory_every} is more than every ({section.every}); the disk's state would be newer, use a smaller number"
        problems.append(Problem(message, "train.checkpoint.memory_every"))
    if not Path(section.memory_dir).is_absolute():
        message = f"'{section.memory_dir}' is not a whole path, and ranks run anywhere; write one that begins with /"
        problems.append(Problem(message, "train.checkpoint.memory_dir"))
    return problems


def _weights(data: DataSection) -> list[Problem]:
    weighted = [i for i, source in enumerate(data.path) if source.weight is not None]
    missing = [i for i, source in enumerate(data.path) if source.weight is None]
    if not (weighted and missing):
        return []
    other, path = f"train.data.path[{weighted[0]}]", data.path[missing[0]].path
    message = f"has no weight, but {other} has; write {{path: {path}, weight: …}}, or take the weights from all paths to join them"
    return [Problem(message, f"train.data.path[{missing[0]}]")]


def _sequence(layout: LayoutSection, train: TrainSection) -> list[Problem]:
    if layout.cp == 1 or train.data.seq_len >= 2 * layout.cp:
        return []
    message = f"{layout.cp} needs two parts of a sequence per rank; train.data.seq_len is {train.data.seq_len}"
    return [Problem(message, "layout.cp")]


def _fits(train: TrainSection, model: ModelSpec) -> list[Problem]:
    data, problems = train.data, []
    if data.seq_len > model.max_seq:
        message = f"{data.seq_len} is more than the {model.max_seq} positions of model {model.name}; shorten it, or raise max_seq"
        problems.append(Problem(message, "train.data.seq_len"))
    is_text = any(Path(source.path).suffix not in TOKENS and not is_prefix(source.path) for source in data.path)
    if is_text and data.tokenizer == "bytes" and model.vocab < 256:
        message = f"bytes need a vocabulary of 256, model {model.name} has {model.vocab}; raise vocab, or name a tokenizer.json"
        problems.append(Problem(message, "train.data.tokenizer"))
    return problems


def _batch(layout: LayoutSection, train: TrainSection) -> list[Problem]:
    if layout.dp > train.global_batch:
        message = f"{layout.dp} replicas cannot share train.global_batch: {train.global_batch}; each needs a sample"
        return [Problem(message, "layout.dp")]
    if layout.zero > 1 and layout.micro_batch == 1 and train.global_batch % layout.dp:
        message = (
            f"{layout.zero} needs equally many microbatches on each of {layout.dp} replicas, but train.global_batch: "
            f"{train.global_batch} does not divide; use micro_batch: 2 or more, or zero: 1"
        )
        return [Problem(message, "layout.zero")]
    return []


def shared_by_ranks(tp: int, model: ModelSpec) -> list[Problem]:
    """What is too little for tp ranks to share."""
    dims = {"heads": model.heads, "feed-forward rows": model.mlp, "vocabulary rows": model.vocab}
    return [
        Problem(f"{tp} ranks cannot share {units} {dim}; use tp: {units} or less", "layout.tp")
        for dim, units in dims.items()
        if tp > units
    ]


def _cut(layout: LayoutSection, model: ModelSpec) -> list[Problem]:
    problems = shared_by_ranks(layout.tp, model)
    if layout.pp * layout.vpp > model.layers and layout.boundaries is None:
        stages = f"{layout.pp} stages" + (f" of {layout.vpp} chunks" if layout.vpp > 1 else "")
        message = f"{stages} are more than the {model.layers} layers of {model.name}; use fewer, or give boundaries with zeros"
        problems.append(Problem(message, "layout.pp"))
    if layout.boundaries is None:
        return problems
    chunks, cut = layout.pp * layout.vpp, len(layout.boundaries)
    if cut != chunks:
        number = f"pp x vpp = {layout.pp} x {layout.vpp} needs {chunks}"
        problems.append(Problem(f"has {cut} numbers, {number}, one for each stage's layers", "layout.boundaries"))
    elif (total := sum(layout.boundaries)) != model.layers:
        problems.append(Problem(f"adds up to {total}, model {model.name} has {model.layers} layers", "layout.boundaries"))
    return problems
