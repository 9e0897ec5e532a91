"""Journals and audit trails of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from perdure.kernel.rows import Entry, Staged, Wait
from perdure.kernel.runs import Audit


class Journal(Struct, frozen=True):
    """A run's input, its entries and its waits. This is everything that is needed to load the run into memory.

    For a run that rolls back, `failure` is the reason for the rollback. The store leaves `failure` empty, because it
    can be read separately. `staged` are the results of steps that are not in the journal yet.
    """

    input: str
    entries: list[Entry]
    waits: tuple[Wait, ...] = ()
    failure: str = ""
    staged: tuple[Staged, ...] = ()


class JournalStore(Protocol):
    """Journals and audit trails."""

    async def journal(self, run_id: str) -> tuple[str, list[Entry]]:
        """Return a run's input and its entries in completion order. Raises RunNotFound."""

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        """Return the journals of several runs, with their waits and staged results, in one read. Unknown ids are left
        out. With an empty list, no query is made.
        """

    async def archived(self, run_id: str) -> list[tuple[int, Entry]]:
        """Return the entries that retries have archived. Each has the number of the attempt to which it belonged."""

    async def audit(self, run_id: str) -> list[Audit]:
        """Return a run's audit rows, oldest first."""

    async def audits(self, ids: Sequence[str]) -> list[Audit]:
        """Return the audit rows of several runs in one query. They are grouped by run, oldest first. With an empty
        list, no query is made.
        """
