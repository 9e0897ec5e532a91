"""Transactions of a simulated database, and what could be wrong with them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from perdure.testing.simulate.locks import Holder, Key, Locks
from perdure.testing.simulate.network import Network

__all__ = ["Bug", "Transaction"]


class Bug(StrEnum):
    """What a store, or an engine, could get wrong. A simulation finds each of them."""

    NO_NAME_LOCK = "no-name-lock"  # waits and broadcasts are matched without a lock on the event's name
    EARLY_SNAPSHOT = "early-snapshot"  # the tables are read as they were before that lock was got
    NO_FENCE = "no-fence"  # an engine that was marked dead may write
    LATE_BURIAL = "late-burial"  # a takeover claims and reads, and marks the engine dead afterwards
    UNLOCKED_OWNERS = "unlocked-owners"  # who is told that a run has won is read early, without a lock on the run
    MAIL_CURSOR = "mail-cursor"  # mail is deleted up to the greatest id that was read
    UNKNOWN_IS_FAILURE = "unknown-is-failure"  # a commit of which nothing is heard counts as not done


class Transaction(Holder):
    """Holds its locks until it ends."""

    __slots__ = ("_locks", "_network")

    def __init__(self, locks: Locks, network: Network) -> None:
        super().__init__()
        self._locks = locks
        self._network = network

    async def statement(self) -> None:
        """The next statement: others got their turns before it."""
        await self._network.pass_by()

    async def lock(self, keys: Iterable[Key], *, exclusive: bool) -> None:
        """A statement that locks these, in this order. Raises StoreBusy."""
        for key in keys:
            await self._locks.take(self, key, exclusive=exclusive)
