"""Ops in the queue of the coordinator, each with a future or a callback for its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable
from typing import Any

from msgspec import Struct

from perdure.errors import Fenced
from perdure.kernel.ops import Op


class Callback:
    """A reply that calls a function instead of completing a future. The function gets the value and None, or None and
    the error. It is called once."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[Any, BaseException | None], object]) -> None:
        self._call: Callable[[Any, BaseException | None], object] | None = call

    def done(self) -> bool:
        return self._call is None

    def set_result(self, value: Any) -> None:
        self._answer(value, None)

    def set_exception(self, error: BaseException) -> None:
        self._answer(None, error)

    def _answer(self, value: Any, error: BaseException | None) -> None:
        call, self._call = self._call, None
        if call is not None:
            call(value, error)


class Item(Struct, eq=False, gc=False):
    """An op in the queue and its reply. `mail` is the id of the mail that brought the op, or 0. `is_due` says that the
    op comes from a timer. `number` counts the items of a queue in the order of arrival.

    For a caller from `outside`, `since` is the loop's time at which it began to wait. If the caller has `given_up`, it
    already has its error.
    """

    op: Op
    reply: asyncio.Future[Any] | Callback | None
    outside: bool
    mail: int = 0
    since: float = 0.0
    given_up: bool = False
    is_due: bool = False
    number: int = 0

    def answer(self, value: Any) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(value)

    def refuse(self, error: BaseException) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(error)


def without_mail(items: Iterable[Item], mail_ids: Container[int], error: BaseException) -> list[Item]:
    """Return the items whose mail is not in `mail_ids`. All other items are refused with the error, because another
    engine has answered their mail.
    """
    kept: list[Item] = []
    for item in items:
        if item.mail in mail_ids:
            item.refuse(error)
        else:
            kept.append(item)
    return kept


def from_outside(items: list[Item], fenced: Fenced) -> list[Item]:
    """Return the ops of callers from outside. The engine's own ops are refused with the error, because the engine no
    longer owns their runs.
    """
    for item in items:
        if not item.outside:
            item.refuse(fenced)
    return [item for item in items if item.outside]


__all__ = ["Callback", "Item", "from_outside", "without_mail"]
