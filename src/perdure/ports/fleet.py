"""Engines that share a store: which engines are alive, which runs they own, and whether there is work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from perdure.kernel.rows import Engine
from perdure.ports.runs import LoadedRun, Offer

# The row of a dead engine that did not sign off is kept for this long. If the engine is still alive but was cut off,
# the number in its row shows whether its last batch was committed.
ENGINES_KEPT_US = 24 * 60 * 60 * 1_000_000


class WorkFound(Struct, frozen=True, kw_only=True):
    """Says which kinds of work there may be. `mail`: there is mail to read. `dead`: an engine no longer has a sign of
    life. `stray`: a run without a living owner could go on now. `blocked`: code that is offered may fit a blocked run,
    because its fingerprint was not tried yet or is not known yet.
    """

    mail: bool = False
    dead: bool = False
    stray: bool = False
    blocked: bool = False


class FleetStore(Protocol):
    """Engines."""

    def listen(self, on_change: Callable[[], object]) -> None:
        """Call back on the running loop whenever other engines or clients may have left work for this store's engine or
        for all engines. A call is only a hint. Some calls are lost, and some are unnecessary. The calls end with
        `close` and `abandon`.
        """

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> WorkFound:
        """Return whether there is work for the engine. The work is mail that `mail` would return, an engine that
        `mark_dead_engines` would mark, or a run that `claim` or `due_runs` would return at the time `at`. This is one
        cheap read.
        """

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        """Register an engine as alive, with batch number 0 and a new epoch. The store keeps the engine's sign of life
        until `close` or `abandon`.
        """

    async def retire(self, engine_id: str) -> None:
        """Mark an engine as not alive, and release every run that it still owns, in one transaction. The engine has no
        commit under way, so its row may be removed, as `purge` does. An engine without a row counts as dead: its writes
        raise Fenced.
        """

    def withdraw(self, engine_id: str) -> None:
        """Stop an engine's sign of life, without using the database. After that, other engines consider this engine
        dead, and may take over its runs. Another engine may be registered afterwards. Idempotent.
        """

    def is_surely_alive(self) -> bool:
        """Return whether it is certain that the sign of life of this store's engine never stopped, so that no other
        engine can have marked it dead. Return False if this process was stopped for a while. Then only a commit shows
        whether the engine was marked dead. This does not use the database.
        """

    async def mark_dead_engines(self) -> list[str]:
        """Mark every engine without a sign of life as not alive, and return the ids of these engines. This claims no
        runs.
        """

    async def engines(self, *, living: bool = False) -> list[Engine]:
        """Return all engines that the store has, by epoch. With `living`, return only engines that are not marked dead.
        With `living`, the cost does not grow with the number of all engines.
        """

    async def claim(self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int) -> list[LoadedRun]:
        """Take over up to `limit` active runs that have no living owner and fit an offer, oldest first.

        Suspended runs are not claimed: `due_runs` returns them when they can go on. Held runs are not claimed either,
        with one exception. A blocked run is claimed if its hold has fingerprints but not the fingerprint of the offer.
        This code was not tried yet, and may fit. Each claimed run's `claim` grows by one. Raises Fenced.
        """
