"""Runs: loading, listing and showing them."""

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
    """A run, its waits, and the events that were sent or given to it: everything that is needed to decide about the
    run."""

    run: Run
    waits: tuple[Wait, ...] = ()
    events: tuple[Event, ...] = ()  # in the order of sending
    orphaned: bool = False  # its last owner died while it owned the run, and did not release it
    forsaken: bool = False  # its owner is not alive
    damage: Damage | None = None  # some of its waits or events could not be read, and are left out


class Offer(Struct, frozen=True):
    """Code that an engine has. A run fits the offer if it has the same model, and was started as the same version of
    the same workflow. The version of an operation is the topic of its messages, with the version of its code if the
    code has a version.

    `begun` is for operations that have versions: only runs that some code has begun fit (True), or only runs that no
    code has begun (False). See `fits` in storage/claims.py. An offer without a fingerprint claims no blocked run."""

    workflow: str
    version: str
    fingerprint: str
    model: str = "function"
    begun: bool | None = None


class StoredRun(Struct, frozen=True, kw_only=True):
    """A run with its payloads, for people."""

    run: Run
    input: str
    outcome: Outcome


class ChangedRun(Struct, frozen=True):
    """A run that may have new audit rows."""

    id: str
    workflow: str


class DueRun(Struct, frozen=True, kw_only=True):
    """A run without a living owner, and the time at which it goes on or its deadline ends it."""

    run_id: str
    due_at: int
    deadline: bool


class Within(Struct, frozen=True, kw_only=True):
    """The runs that have one of these workflows, or one of these tags (key and value). If both are empty, no run is
    included."""

    workflows: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()

    def covers(self, workflow: str, tags: Mapping[str, str]) -> bool:
        return workflow in self.workflows or any(tags.get(key) == value for key, value in self.tags)


class RunFilter(Struct, frozen=True, kw_only=True):
    """A filter of runs: lists the runs that match every given field, newest first, strictly after the cursor.

    `after` is the (created_at, id) of the last run of the page before.
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
        """Hold a damaged run, unless it is held or another living engine owns it. Return whether it was held. A held
        run has no owner. Apart from hold, owner and revision, nothing in its row changes. The hold is audited."""

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        """Return runs by id, in one query. Unknown ids are absent. An empty list makes no query."""

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        """Return runs by id, each with its journal, in one read. Unknown ids are absent. An empty list makes no query.
        A journal is never older than its run. Raises RowDamaged if the journal of one of the runs cannot be read."""

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        """Return the active children of these runs that are not detached. With `stopped`, also return the children that
        were cancelled or rolled back."""

    async def due_runs(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[DueRun]:
        """Return runs without a living owner whose earliest wait or deadline is before the time `before`, the earliest
        first. A run that is not held must fit an offer. A held run needs no offer, but only its deadline counts. It
        counts only if it can end the run: the run is not being undone, or is an operation's run."""

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        """Return runs with payloads, in one query. Unknown ids are absent. An empty list makes no query."""

    async def list(self, wanted: RunFilter) -> list[Run]:
        """Return the runs that match a filter, without payloads, newest first."""

    async def count(self, wanted: RunFilter) -> int:
        """Return how many runs `list` would return for the same filter, without reading them: at most its `limit`."""

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        """Return the number of runs for each cell: the runs with a status that were created from one time on and before
        another time. At most `limit` runs are counted for each cell."""

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        """Return runs that may have audit rows from the time `since` on, by id, strictly after the id `after`."""
