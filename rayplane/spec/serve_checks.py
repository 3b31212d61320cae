"""What no single field of a serving job shows: values that are fine alone and impossible together.

model     as for training
serve     max_context <= what the model was made for, a prompt with its answer <= max_context, min <= max, one source of keys
layout    dp within serve.replicas, no rank is left without a head, a row or a layer
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rayplane.errors import Problem
from rayplane.spec.checks import checked_model, shared_by_ranks
from rayplane.spec.model import ModelSpec
from rayplane.spec.model_section import ModelSection
from rayplane.spec.paths import path_fault
from rayplane.spec.serve_section import ServeLayoutSection, ServeSection
from rayplane.spec.tokenizer import BYTES, tokenizer_problems


@dataclass(frozen=True, slots=True)
class ServeSections:
    """The parts of a job file that are right by themselves; None for those that are not, or are not there."""

    model: ModelSection | None
    serve: ServeSection | None
    layout: ServeLayoutSection | None
    local: bool
    """Whether the job's files must be on this machine: not when its cluster is described, for then it is planned from afar."""


def check_serving(sections: ServeSections) -> list[Problem]:
    """Every problem across fields, each with the dotted name of the field to change."""
    model, problems = checked_model(sections.model)
    serve, layout = sections.serve, sections.layout
    if serve:
        problems += _replicas(serve, layout) + _load(serve) + _keys(serve, sections.local)
        problems += _tokenizer(serve, sections.model if model else None, sections.local)
    if serve and model:
        problems += _fits(serve, model)
    if layout and model:
        problems += _cut(layout, model)
    return problems


def _replicas(serve: ServeSection, layout: ServeLayoutSection | None) -> list[Problem]:
    least, most = serve.replicas.min, serve.replicas.max
    if most is not None and most < least:
        return [Problem(f"{most} is less than min ({least})", "serve.replicas.max")]
    if layout is None or layout.dp is None or (layout.dp >= least and layout.dp <= (most or layout.dp)):
        return []
    bounds = f"{least} to {most}" if most else f"{least} or more"
    return [Problem(f"{layout.dp} replicas are not within serve.replicas, {bounds}; change one of them, or leave dp out", "layout.dp")]


def _load(serve: ServeSection) -> list[Problem]:
    prompt, output, longest = serve.load.prompt_tokens, serve.load.output_tokens, serve.max_context
    if longest is None or (prompt or 0) + (output or 0) <= longest:
        return []
    field = "prompt_tokens" if prompt else "output_tokens"
    message = f"a prompt of {prompt or 0} tokens and an answer of {output or 0} do not fit serve.max_context ({longest})"
    return [Problem(f"{message}; raise it, or ask for less", f"serve.load.{field}")]


def _keys(serve: ServeSection, local: bool) -> list[Problem]:
    keys = serve.api_keys
    if keys is None:
        return []
    if (keys.file is None) == (keys.env is None):
        return [Problem("needs exactly one of file and env", "serve.api_keys")]
    if keys.file is None:
        return []
    if fault := path_fault(keys.file):
        return [Problem(fault, "serve.api_keys.file")]
    if local and not Path(keys.file).expanduser().is_file():
        return [Problem(f"no such file: {keys.file} (looked in {Path.cwd()})", "serve.api_keys.file")]
    return []


def _tokenizer(serve: ServeSection, model: ModelSection | None, local: bool) -> list[Problem]:
    field = "serve.tokenizer"
    if fault := path_fault(serve.tokenizer, local):
        return [Problem(fault, field)]
    return tokenizer_problems(serve.tokenizer, model, field=field) if local else []


def _fits(serve: ServeSection, model: ModelSpec) -> list[Problem]:
    problems = []
    if serve.max_context and serve.max_context > model.max_seq:
        message = f"{serve.max_context} is more than the {model.max_seq} positions of model {model.name}; lower it, or raise max_seq"
        problems.append(Problem(message, "serve.max_context"))
    if serve.tokenizer == BYTES and model.vocab < 256:
        message = f"bytes need a vocabulary of 256, model {model.name} has {model.vocab}; raise vocab, or name a tokenizer.json"
        problems.append(Problem(message, "serve.tokenizer"))
    return problems


def _cut(layout: ServeLayoutSection, model: ModelSpec) -> list[Problem]:
    problems = shared_by_ranks(layout.tp, model)
    if layout.pp > model.layers:
        message = f"{layout.pp} stages are more than the {model.layers} layers of {model.name}; use fewer"
        problems.append(Problem(message, "layout.pp"))
    return problems
