"""Users' records as values: named things with versions that definitions refer to.

Times are microseconds since the epoch. A body is text that the codec has encoded. The kernel does not read it.
"""

from __future__ import annotations

from msgspec import Struct


class Record(Struct, frozen=True, kw_only=True):
    """One version of something that definitions refer to by kind and name: an action, a prompt, a model's profile."""

    kind: str
    name: str
    version: int = 0  # 1, 2, 3, …; given by the store
    digest: str  # of the body, before the codec: equal digests mean equal bodies
    actor: str
    at: int
    body: str  # JSON, encoded by the codec
