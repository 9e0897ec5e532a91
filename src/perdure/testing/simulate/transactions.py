"""Transactions of a simulated database, and deliberate bugs in them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from perdure.testing.simulate.locks import Holder, Key, Locks
from perdure.testing.simulate.network import Network

__all__ = ["Bug", "Transaction"]


class Bug(StrEnum):
    """A bug that a store or an engine could have. The simulator must find each of these bugs."""

    NO_NAME_LOCK = "no-name-lock"  # waits and broadcasts are matched without a lock on the event's name
    EARLY_SNAPSHOT = "early-snapshot"  # the tables are read in the state before that lock was taken
    NO_FENCE = "no-fence"  # an engine that was marked dead may write
    LATE_MARKING = "late-marking"  # a takeover claims and reads runs before it marks the engine dead
    # the owner of a run that has won a wait is read early, without a lock on the run
    UNLOCKED_OWNERS = "unlocked-owners"
    MAIL_CURSOR = "mail-cursor"  # mail is deleted up to the greatest id that was read
    UNKNOWN_IS_FAILURE = "unknown-is-failure"  # a commit without an answer counts as a commit that failed


class Transaction(Holder):
    """A transaction. It holds its locks until it ends."""

    __slots__ = ("_locks", "_network")

    def __init__(self, locks: Locks, network: Network) -> None:
        super().__init__()
        self._locks = locks
        self._network = network

    async def statement(self) -> None:
        """Begin the next statement, after other transactions had a chance to run."""
        await self._network.pass_by()

    async def lock(self, keys: Iterable[Key], *, exclusive: bool) -> None:
        """Lock these rows in this order, in one statement. Raises StoreBusy."""
        for key in keys:
            await self._locks.take(self, key, exclusive=exclusive)
