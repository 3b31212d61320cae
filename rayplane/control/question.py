"""Something that takes long to find out, asked in a thread of its own, so that who wants to know need not wait.

question = Question(lambda: plan(...))      question.answered ──▶ question.answer()      what it returned, or raises what it raised
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Question(Generic[T]):
    """Its thread is a daemon: a process that ends does not wait for an answer that nobody wants any more."""

    def __init__(self, find_out: Callable[[], T]):
        self._find_out = find_out
        self._found: list[T] = []
        self._error: BaseException | None = None
        self.took_s = 0.0
        self._thread = threading.Thread(target=self._run, name="question", daemon=True)
        self._thread.start()

    @property
    def answered(self) -> bool:
        """Whether there is an answer, or an error."""
        return not self._thread.is_alive()

    def answer(self) -> T:
        """The answer, once there is one."""
        assert self.answered, "ask `answered` first"
        if self._error:
            raise self._error
        return self._found[0]

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            self._found.append(self._find_out())
        except Exception as error:
            self._error = error
        self.took_s = time.monotonic() - began_s
