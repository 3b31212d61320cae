"""Models from the Hugging Face hub: `hf://org/name` becomes a local folder, fetched once and kept in the hub's own cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub

from rayplane.errors import Problem, SpecError

CONFIG_FILES = ("*.json", "tokenizer*")
"""What a plan needs: the model's numbers and its tokenizer."""

MODEL_FILES = (*CONFIG_FILES, "*.safetensors")
"""What a run needs."""


def fetch(repo: str, patterns: Sequence[str]) -> Path:
    """The local copy of a hub model's files that match `patterns`. Raises SpecError when there is none and none can be fetched."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise SpecError(Problem(f"hf://{repo} is not of the form hf://org/name", "model.path"))
    try:
        return Path(huggingface_hub.snapshot_download(repo, allow_patterns=list(patterns)))
    except (OSError, ValueError) as e:
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        message = f"cannot fetch {repo} from the Hugging Face hub ({reason}); check name and network, or give the path of a local copy"
        raise SpecError(Problem(message, "model.path")) from None
