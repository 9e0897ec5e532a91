"""Exceptions as values: the stored form of the exception with which a step or a run failed."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class Attempt(Struct, frozen=True, omit_defaults=True):
    """One failed attempt of a step."""

    attempt: int
    type: str
    message: str
    at: int


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exception as data. `type` is `module:qualname`. `args` is None if the exception's arguments have no JSON form.
    `state` has the attributes that have a JSON form. `native` has the built-in fields of Python's own exceptions
    (errno, filename). `partial` says that some part could not be stored. `members` are the exceptions of an exception
    group.

    `entry` is the completion number of the journal entry that failed. A retry goes on from there. `where` is a text for
    people. It says in which branch of a graph the exception was raised.

    `sealed` is set only in stored rows, and only if the engine has a codec. It is the whole failure, encoded with the
    codec. The row then has nothing else in plain text but `type` and `entry`.
    """

    type: str
    message: str
    args: list[Any] | None = None
    state: dict[str, Any] = field(default_factory=dict)
    native: dict[str, Any] = field(default_factory=dict)
    partial: bool = False
    members: list[Failure] = field(default_factory=list)
    stack: str = ""
    entry: int | None = None
    history: list[Attempt] = field(default_factory=list)
    cause: Failure | None = None
    where: str = ""
    sealed: str = ""

    @property
    def text(self) -> str:
        """The message, and the branch of the graph if it is known."""
        return f"{self.message} ({self.where})" if self.where else self.message


__all__ = ["Attempt", "Failure"]
