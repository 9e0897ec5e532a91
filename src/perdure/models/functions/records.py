"""Versioned records, for steps that need them: every engine has those of its store among its resources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from perdure.ports import Codec, Store


class Records:
    """What `engine.records.put` has stored: `current_step().resource(Records)`."""

    def __init__(self, store: Callable[[], Store], codec: Codec) -> None:
        self._store = store
        self._codec = codec

    async def get(self, kind: str, name: str, version: int | None = None) -> tuple[int, Any] | None:
        """The version and the body of a record, of its newest version unless given; None if there is none. Raises
        StoreError."""
        found = await self._store().record(kind, name, version)
        return None if found is None else (found.version, msgspec.json.decode(self._codec.decode(found.body)))
