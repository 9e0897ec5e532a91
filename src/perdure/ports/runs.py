"""Runs: reads that load, list and show them."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from perdure.kernel.events import Event
from perdure.kernel.rows import Wait
from perdure.kernel.runs import Damage, Hold, Outcome, Run
from perdure.ports.journals import Journal


class LoadedRun(Struct, frozen=True, kw_only=True):
    """A run, its waits, and the events that were sent or given to it. This is everything that a decision about the run
    needs.
    """

    run: Run
    waits: tuple[Wait, ...] = ()
    events: tuple[Event, ...] = ()  # in the order of sending
    orphaned: bool = False  # its last owner died while it owned the run, without releasing it
    forsaken: bool = False  # its owner is not alive
    damage: Damage | None = None  # some of its waits or events could not be read; they are left out


class Offer(Struct, frozen=True):
    """Code that an engine has. A run fits the offer if it has the same model, workflow and version. For an operation,
    the version is the topic of its messages, followed by the version of its code if there is one.

    `begun` is for operations with versions. If it is True, only runs fit that some code has begun. If it is False, only
    runs fit that no code has begun. See `fits` in storage/claims.py. An offer without a fingerprint claims no blocked
    run.
    """

    workflow: str
    version: str
    fingerprint: str
    model: str = "function"
    begun: bool | None = None


class StoredRun(Struct, frozen=True, kw_only=True):
    """A run with its payloads, for display."""

    run: Run
    input: str
    outcome: Outcome


class ChangedRun(Struct, frozen=True):
    """A run that may have new audit rows."""

    id: str
    workflow: str


class DueRun(Struct, frozen=True, kw_only=True):
    """A run without a living owner. It goes on at this time, or its deadline ends it then."""

    run_id: str
    due_at: int
    deadline: bool


class Within(Struct, frozen=True, kw_only=True):
    """The runs that have one of these workflows, or one of these tags (key and value). If both are empty, no run is
    selected.
    """

    workflows: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()

    def covers(self, workflow: str, tags: Mapping[str, str]) -> bool:
        return workflow in self.workflows or any(tags.get(key) == value for key, value in self.tags)


class RunFilter(Struct, frozen=True, kw_only=True):
    """A filter of runs. It selects the runs that match every given field and come after the cursor. They are listed
    newest first.

    `after` is the pair (created_at, id) of the last run on the previous page.
    """

    workflow: str | None = None
    statuses: tuple[str, ...] = ()
    hold: str | None = None
    parent_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    created_from: int | None = None
    created_before: int | None = None
    after: tuple[int, str] | None = None
    limit: int = 100


class RunStore(Protocol):
    """Runs."""

    async def set_aside(self, run_id: str, hold: Hold, *, engine_id: str, at: int) -> bool:
        """Hold a damaged run, unless it is already held or another living engine owns it. Return whether it was held.
        After that, the run has no owner. In its row, only the hold, the owner and the revision change. An audit row
        records the hold.
        """

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        """Return runs by id, in one query. Unknown ids are left out. With an empty list, no query is made."""

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        """Return runs by id, each with its journal, in one read. Unknown ids are left out. With an empty list, no query
        is made. A journal is at least as new as its run. Raises RowDamaged if the journal of one of the runs cannot be
        read.
        """

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        """Return the active children of these runs that are not detached. With `stopped`, also return the children that
        were cancelled or rolled back."""

    async def due_runs(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[DueRun]:
        """Return runs that have no living owner and whose earliest wait or deadline is before the time `before`. The
        earliest comes first. A run that is not held must fit an offer. A held run needs no offer, but only its deadline
        is considered. The deadline is considered only if it can end the run: the run is not being undone, or it is an
        operation's run.
        """

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        """Return runs with payloads, in one query. Unknown ids are left out. With an empty list, no query is made."""

    async def list(self, wanted: RunFilter) -> list[Run]:
        """Return the runs that match a filter, without payloads, newest first."""

    async def count(self, wanted: RunFilter) -> int:
        """Return how many runs `list` would return for the same filter, up to its `limit`. The runs themselves are not
        read.
        """

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        """Return the number of runs for each cell. A cell has a status, a time from which runs were created, and a time
        before which they were created. At most `limit` runs are counted for each cell.
        """

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        """Return runs that may have audit rows from the time `since` on, by id. Only ids after `after` are returned."""
