"""What a token is good for: a level, for everything or only for the runs of a workflow or with a tag.

    read                          look at everything
    operate:workflow=checkout     operate runs of this workflow
    read:tag=tenant=acme          look at runs with this tag

A token may have several, and may do what one of them allows.
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
    """A level. Each includes those before it."""

    READ = "read"  # look
    OPERATE = "operate"  # start, send, cancel, retry, answer, work
    ADMIN = "admin"  # make and revoke tokens, export the audit

    def includes(self, other: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


class Grant(Struct, frozen=True):
    """One scope: a level, and, unless it is for everything, the workflow or the tag of the runs that it is for."""

    level: Scope
    workflow: str | None = None
    tag: tuple[str, str] | None = None

    @property
    def is_restricted(self) -> bool:
        return self.workflow is not None or self.tag is not None

    def covers(self, workflow: str, tags: Mapping[str, str]) -> bool:
        """Whether a run of this workflow, with these tags, is among those that it is for."""
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
        """Whether there is nothing that they allow everywhere."""
        return all(one.is_restricted for one in self.granted)

    def includes(self, level: Scope) -> bool:
        """Whether they allow a level for everything."""
        return any(one.level.includes(level) and not one.is_restricted for one in self.granted)

    def reaches(self, level: Scope) -> bool:
        """Whether they allow a level for some runs, or for all."""
        return any(one.level.includes(level) for one in self.granted)

    def allows(self, level: Scope, workflow: str, tags: Mapping[str, str]) -> bool:
        """Whether they allow a level for a run of this workflow with these tags."""
        return any(one.level.includes(level) and one.covers(workflow, tags) for one in self.granted)

    def parts(self, level: Scope) -> tuple[Grant, ...]:
        """Which runs they allow a level for, each part once; none if it is everything."""
        if self.includes(level):
            return ()
        return tuple(dict.fromkeys(Grant(level, o.workflow, o.tag) for o in self.granted if o.level.includes(level)))

    def __str__(self) -> str:
        return ", ".join(map(str, self.granted))


EVERYTHING: Final = Grants((Grant(Scope.ADMIN),))


def parse_scope(text: str) -> Grant:
    """Raises InvalidArguments."""
    level_text, colon, rest = text.partition(":")
    if level_text not in list(Scope) or len(text) > _SCOPE_CHARS_MAX:
        raise InvalidArguments(
            f"a token's scope is {', '.join(Scope)}, or one of them for some runs, as operate:workflow=checkout or"
            f" read:tag=tenant=acme, not {text!r:.80}"
        )
    level = Scope(level_text)
    if not colon:
        return Grant(level)
    if level is Scope.ADMIN:
        raise InvalidArguments(f"admin is for everything, and cannot be for some runs only: {text!r:.80}")
    dimension, equals, value = rest.partition("=")
    if dimension == "queue":
        raise InvalidArguments(f"runs have no queues, so no scope can be for one: {text!r:.80}")
    if dimension not in _DIMENSIONS or not equals or not value:
        raise InvalidArguments(
            f"a scope is for a workflow (workflow=NAME) or a tag (tag=KEY=VALUE), not for {rest!r:.80}"
        )
    if dimension == "workflow":
        return Grant(level, workflow=value)
    key, equals, tag_value = value.partition("=")
    if not key or not equals or not tag_value:
        raise InvalidArguments(f"a tag is given as tag=KEY=VALUE, not {rest!r:.80}")
    return Grant(level, tag=(key, tag_value))


def parse_scopes(scopes: str | Iterable[str]) -> Grants:
    """One scope or several. Raises InvalidArguments."""
    texts = [scopes] if isinstance(scopes, str) else list(scopes)
    if not 1 <= len(texts) <= _SCOPES_MAX:
        raise InvalidArguments(f"a token has from 1 to {_SCOPES_MAX} scopes, not {len(texts)}")
    return Grants(tuple(dict.fromkeys(parse_scope(text) for text in texts)))


__all__ = ["EVERYTHING", "Grant", "Grants", "Scope", "parse_scope", "parse_scopes"]
