"""Versioned records for steps. An engine offers the records of its store to steps as a resource."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from perdure.ports import Codec, Store


class Records:
    """The records that `engine.records.put` has stored: `current_step().resource(Records)`."""

    def __init__(self, store: Callable[[], Store], codec: Codec) -> None:
        self._store = store
        self._codec = codec

    async def get(self, kind: str, name: str, version: int | None = None) -> tuple[int, Any] | None:
        """Return the version and the body of a record, or None if it does not exist. Without `version`, return the
        newest version. Raises StoreError.
        """
        found = await self._store().record(kind, name, version)
        return None if found is None else (found.version, msgspec.json.decode(self._codec.decode(found.body)))
