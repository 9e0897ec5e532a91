"""Journals and audit trails of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from perdure.kernel.rows import Entry, Staged, Wait
from perdure.kernel.runs import Audit


class Journal(Struct, frozen=True):
    """A run's input, its entries and its waits: everything that is needed to load the run into memory.

    `failure` is the reason of the rollback, for a run that rolls back. The store leaves it empty, since it can be read
    separately. `staged` are the results of steps that are not in the journal yet.
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
        """Return the journals of several runs, with their waits and staged results, in one read. Unknown ids are
        absent. An empty list makes no query."""

    async def archived(self, run_id: str) -> list[tuple[int, Entry]]:
        """Return the entries that retries have archived, each with the number of the attempt that it belonged to."""

    async def audit(self, run_id: str) -> list[Audit]:
        """Return a run's audit rows, oldest first."""

    async def audits(self, ids: Sequence[str]) -> list[Audit]:
        """Return the audit rows of several runs, by run, oldest first, in one query. An empty list makes no query."""
