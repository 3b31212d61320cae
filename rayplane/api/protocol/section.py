"""The form of everything that comes from a client: unknown fields are mistakes, and a number is not a text that looks like one."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


MAX_INT = 2**31 - 1
TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
Count = Annotated[int, Field(ge=0, le=MAX_INT)]

UNSUPPORTED = frozenset(
    [
        "audio",
        "best_of",
        "function_call",
        "functions",
        "metadata",
        "modalities",
        "moderation",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_retention",
        "reasoning_effort",
        "service_tier",
        "store",
        "suffix",
        "tool_choice",
        "tools",
        "verbosity",
        "web_search_options",
    ]
)
"""Fields of OpenAI's requests that this server refuses, since it could not do what they ask."""
