"""Exceptions as values: what is stored of the exception of a failed step or run."""

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
    `state` has those attributes that have one. `native` is what Python's own exceptions keep elsewhere (errno,
    filename). `partial` says that something could not be stored. `members` are those of an exception group.

    `entry` is the completion number of the journal entry that failed, so that a retry knows where to go on. `where`
    says, for people, in which branch of a graph it happened.
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

    @property
    def text(self) -> str:
        """The message, and where it happened if that is known."""
        return f"{self.message} ({self.where})" if self.where else self.message


__all__ = ["Attempt", "Failure"]
