"""Scopes of tokens. A scope is a level of access. It is for everything, or only for the runs of a workflow or the runs
with a tag.

    read                          read everything
    operate:workflow=checkout     operate runs of this workflow
    read:tag=tenant=acme          read runs with this tag

A token may have several scopes. It may do everything that at least one of them allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from perdure.errors import InvalidArguments

_DIMENSIONS: Final = ("workflow", "tag")
_SCOPES_MAX: Final = 50
_SCOPE_CHARS_MAX: Final = 1_100


class Scope(StrEnum):
    """A level of access. Each level includes all lower levels."""

    READ = "read"  # read everything
    OPERATE = "operate"  # also start, send, cancel, retry, answer, claim
    ADMIN = "admin"  # also create and revoke tokens, export the audit trail

    def includes(self, other: Scope) -> bool:
        """Return whether this level includes another level."""
        order = list(Scope)
        return order.index(self) >= order.index(other)


class Grant(Struct, frozen=True):
    """One scope: a level, and the workflow or the tag of the runs to which it applies. Without a workflow and a tag, it
    applies to everything.
    """

    level: Scope
    workflow: str | None = None
    tag: tuple[str, str] | None = None

    @property
    def is_restricted(self) -> bool:
        """Whether this scope applies only to some runs."""
        return self.workflow is not None or self.tag is not None

    def covers(self, workflow: str, tags: Mapping[str, str]) -> bool:
        """Return whether this scope applies to a run of this workflow with these tags."""
        if self.workflow is not None:
            return workflow == self.workflow
        return self.tag is None or tags.get(self.tag[0]) == self.tag[1]

    def __str__(self) -> str:
        if self.workflow is not None:
            return f"{self.level}:workflow={self.workflow}"
        return str(self.level) if self.tag is None else f"{self.level}:tag={self.tag[0]}={self.tag[1]}"


class Grants(Struct, frozen=True):
    """All scopes of a caller."""

    granted: tuple[Grant, ...]

    @property
    def is_restricted(self) -> bool:
        """Whether all scopes apply only to some runs."""
        return all(one.is_restricted for one in self.granted)

    def includes(self, level: Scope) -> bool:
        """Return whether a scope allows this level for everything."""
        return any(one.level.includes(level) and not one.is_restricted for one in self.granted)

    def reaches(self, level: Scope) -> bool:
        """Return whether a scope allows this level for at least some runs."""
        return any(one.level.includes(level) for one in self.granted)

    def allows(self, level: Scope, workflow: str, tags: Mapping[str, str]) -> bool:
        """Return whether a scope allows this level for a run of this workflow with these tags."""
        return any(one.level.includes(level) and one.covers(workflow, tags) for one in self.granted)

    def parts(self, level: Scope) -> tuple[Grant, ...]:
        """Return the scopes that allow this level for some runs, without duplicates. The result is empty if a scope
        allows this level for everything.
        """
        if self.includes(level):
            return ()
        return tuple(dict.fromkeys(Grant(level, o.workflow, o.tag) for o in self.granted if o.level.includes(level)))

    def __str__(self) -> str:
        return ", ".join(map(str, self.granted))


EVERYTHING: Final = Grants((Grant(Scope.ADMIN),))


def parse_scope(text: str) -> Grant:
    """Return a scope from its text. Raises InvalidArguments."""
    level_text, colon, rest = text.partition(":")
    if level_text not in list(Scope) or len(text) > _SCOPE_CHARS_MAX:
        raise InvalidArguments(
            f"a scope is {', '.join(Scope)}, or for some runs only operate:workflow=checkout or read:tag=tenant=acme,"
            f" not {text!r:.80}"
        )
    level = Scope(level_text)
    if not colon:
        return Grant(level)
    if level is Scope.ADMIN:
        raise InvalidArguments(f"the scope admin is always for everything, not for some runs only: {text!r:.80}")
    dimension, equals, value = rest.partition("=")
    if dimension == "queue":
        raise InvalidArguments(f"a scope cannot be for a queue, because runs have no queues: {text!r:.80}")
    if dimension not in _DIMENSIONS or not equals or not value:
        raise InvalidArguments(
            f"a scope is for a workflow (workflow=NAME) or a tag (tag=KEY=VALUE), not for {rest!r:.80}"
        )
    if dimension == "workflow":
        return Grant(level, workflow=value)
    key, equals, tag_value = value.partition("=")
    if not key or not equals or not tag_value:
        raise InvalidArguments(f"a tag has the form tag=KEY=VALUE, not {rest!r:.80}")
    return Grant(level, tag=(key, tag_value))


def parse_scopes(scopes: str | Iterable[str]) -> Grants:
    """Return the scopes of a token from their texts. Raises InvalidArguments."""
    texts = [scopes] if isinstance(scopes, str) else list(scopes)
    if not 1 <= len(texts) <= _SCOPES_MAX:
        raise InvalidArguments(f"a token has from 1 to {_SCOPES_MAX} scopes, not {len(texts)}")
    return Grants(tuple(dict.fromkeys(parse_scope(text) for text in texts)))


__all__ = ["EVERYTHING", "Grant", "Grants", "Scope", "parse_scope", "parse_scopes"]
