"""Engines that share a store: which engines are alive, which runs they own, and whether there is work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from perdure.kernel.rows import Engine
from perdure.ports.runs import LoadedRun, Offer

# The row of a dead engine that did not sign off is kept for this long. If the engine was only cut off, the number in
# its row shows whether its last batch was committed.
ENGINES_KEPT_US = 24 * 60 * 60 * 1_000_000


class WorkFound(Struct, frozen=True, kw_only=True):
    """The work that there may be. `mail`: there is mail to read. `dead`: the sign of life of an engine is gone.
    `stray`: a run without a living owner could go on now. `blocked`: offered code may fit a blocked run, since the
    code's fingerprint was not tried or is not known yet."""

    mail: bool = False
    dead: bool = False
    stray: bool = False
    blocked: bool = False


class FleetStore(Protocol):
    """Engines."""

    def listen(self, on_change: Callable[[], object]) -> None:
        """Call back, on the running loop, whenever other engines or clients may have left something for this store's
        engine or for everybody. A call is only a hint: some calls are lost, and some are needless. The calls end with
        `close` and `abandon`."""

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> WorkFound:
        """Return whether there is mail that `mail` would return, an engine that `mark_dead_engines` would mark, or a
        run that `claim` would take or that `due_runs` would return as due by `at`. One cheap read."""

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        """Register an engine as alive, with batch 0 and a new epoch. Keep its sign of life until close or abandon."""

    async def retire(self, engine_id: str) -> None:
        """Mark an engine as not alive and release every run that it still owns, in one transaction. The engine has no
        commit under way, so its row may be removed, as by `purge`. An engine without a row counts as dead: its writes
        raise Fenced."""

    def withdraw(self, engine_id: str) -> None:
        """Give up an engine's sign of life, without asking the database. Other engines then take the engine for dead,
        and may take over its runs. Another engine may be enrolled afterwards. Idempotent."""

    def is_surely_alive(self) -> bool:
        """Return whether no other engine can have found the sign of life of this store's engine gone. Return False if
        this process was stopped for a while: then only a commit shows whether the engine was marked dead. Does not ask
        the database."""

    async def mark_dead_engines(self) -> list[str]:
        """Mark every engine whose sign of life is gone as not alive; return their ids. Claims no runs."""

    async def engines(self, *, living: bool = False) -> list[Engine]:
        """Return all engines that the store knows, by epoch. With `living`, return only the engines that are not marked
        dead. The cost of `living` does not grow with the number of all engines."""

    async def claim(self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int) -> list[LoadedRun]:
        """Take over up to `limit` active runs without a living owner that fit an offer, oldest first.

        Suspended runs are not claimed: `due_runs` says when they go on. Held runs are not claimed either, except
        blocked runs whose hold has fingerprints, but not the fingerprint of the offer: this code was not tried, and may
        fit. Each claimed run's `claim` grows by one. Raises Fenced.
        """
