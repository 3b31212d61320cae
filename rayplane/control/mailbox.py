"""Orders and their answers as files in a job's folder: each is written aside and renamed, and readable by its owner only.

orders/00001764533175123456789-9f2c.order     {"verb": "pause"}                                  put by who gives it, gone once taken
orders/00001764533175123456789-9f2c.answer    {"done": true, "message": "it is paused …"}        gone once read

Whoever takes an order removes it first, so each is taken once, in the order in which they were given.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rayplane.control.order import Answer, Order
from rayplane.errors import RayplaneError

FOLDER = "orders"
OLD = Answer(False, "it was given to an earlier run of the job, which has ended")

log = logging.getLogger(__name__)

_ORDERS, _ANSWERS = TypeAdapter(Order), TypeAdapter(Answer)


class Mailbox:
    """Of one job's folder."""

    def __init__(self, directory: Path):
        self._folder = directory / FOLDER

    def open(self) -> None:
        """As the controller, once: make the folder, and refuse what was left for an earlier one. Where that cannot be, none comes."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for answer in self._folder.glob("*.answer"):
                answer.unlink(missing_ok=True)
            for key, _ in self.take():
                self.reply(key, OLD)
        except OSError as error:
            log.warning("%s: %s; the job takes no orders", error.filename, error.strerror)

    def put(self, order: Order) -> str:
        """Give an order; its key."""
        key = f"{time.time_ns():023}-{uuid.uuid4().hex[:8]}"
        try:
            self._write(f"{key}.order", _ORDERS, order)
        except OSError as error:
            raise RayplaneError(f"{self._folder} takes no order: {error.strerror}; it is for the user who runs the job") from error
        return key

    def take(self) -> list[tuple[str, Order | Answer]]:
        """What has been given since, oldest first, by key; an answer in place of what is no order."""
        taken: list[tuple[str, Order | Answer]] = []
        for path in sorted(self._folder.glob("*.order")):
            with suppress(FileNotFoundError):  # its giver has thought better of it
                data = path.read_bytes()
                path.unlink()
                taken.append((path.stem, _order(data)))
        return taken

    def withdraw(self, key: str) -> bool:
        """Whether an order had not been taken yet; then it never will be."""
        try:
            (self._folder / f"{key}.order").unlink()
        except FileNotFoundError:
            return False
        return True

    def reply(self, key: str, answer: Answer) -> None:
        """Say what came of an order."""
        self._write(f"{key}.answer", _ANSWERS, answer)

    def answer(self, key: str) -> Answer | None:
        """What came of an order, once."""
        path = self._folder / f"{key}.answer"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        path.unlink(missing_ok=True)
        return _ANSWERS.validate_json(data)

    def _write(self, name: str, kind: TypeAdapter[Any], value: Order | Answer) -> None:
        aside = self._folder / f"{name}.tmp"
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(kind.dump_json(value))
        aside.replace(self._folder / name)


def _order(data: bytes) -> Order | Answer:
    try:
        return _ORDERS.validate_json(data)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        return Answer(False, f"it is no order that this run knows: {': '.join([*map(str, fault['loc']), fault['msg']])}")
