"""Events that wait to be read, and dead letters."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.events import DeadLetter, Event
from perdure.storage.memory.connection import MemorySlice


class MemoryEvents(MemorySlice):
    """Events and dead letters."""

    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        known = self._db.opened().tables.keys
        return {key: known[key][0] for key in keys if key in known}

    async def spreading(self) -> list[str]:
        return sorted(self._db.opened().tables.cursors)

    async def events(self, *, name: str | None = None, run_id: str | None = None, limit: int = 100) -> list[Event]:
        tables = self._db.opened().tables
        found = tables.of("" if run_id is None else run_id)
        return [event for event in found if name in (None, event.name)][: max(0, limit)]

    async def dead_letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        letters = self._db.opened().tables.letters
        found = [letters[one] for one in sorted(letters) if name in (None, letters[one].name)]
        return [letter for letter in found if after is None or letter.id > after][: max(0, limit)]

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        return self._db.opened().tables.letters.get(letter_id)
