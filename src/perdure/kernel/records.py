"""Users' records as values. They have names and versions, and definitions refer to them.

Times are microseconds since the epoch. A body is text that the codec has encoded. The kernel does not read it.
"""

from __future__ import annotations

from msgspec import Struct


class Record(Struct, frozen=True, kw_only=True):
    """One version of a record, for example of an action, a prompt or a model's profile. Definitions refer to a record
    by kind and name.
    """

    kind: str
    name: str
    version: int = 0  # 1, 2, 3, …; the store sets it
    digest: str  # of the body, before the codec encodes it; equal digests mean equal bodies
    actor: str
    at: int
    body: str  # JSON, encoded by the codec
