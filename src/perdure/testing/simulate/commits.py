"""A commit to a simulated database: the statements of one transaction. Statements of other transactions may run between
them.

The transaction first checks the fence. Then it locks the names of events, and then rows. After that, it reads the rows
for the matching, with one statement for each question. If the transaction has to wait for the lock of a row, it reads
the row again when it has the lock. If the row has changed, the batch must be resent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.errors import StoreBusy
from perdure.kernel.batch import Batch, Committed, winners_elsewhere
from perdure.kernel.pieces import at_once
from perdure.kernel.rows import Mail, Wait
from perdure.kernel.rules.broadcasts import Question, Settlement, settle
from perdure.storage.memory.commit import check_rows, check_runs, check_values, has_landed, write_batch
from perdure.storage.memory.database import MemoryDatabase
from perdure.storage.memory.tables.events import Answers, EventTables
from perdure.testing.simulate.network import Fate
from perdure.testing.simulate.transactions import Bug, Transaction

__all__ = ["Commit"]


class Commit:
    """One batch in one transaction."""

    def __init__(self, memory: MemoryDatabase, batch: Batch, transaction: Transaction, bugs: frozenset[Bug]) -> None:
        self._memory = memory
        self._batch = batch
        self._transaction = transaction
        self._bugs = bugs
        self._base = 0
        self._mail_base = 0
        self._snapshot: EventTables | None = None
        self._owners: dict[str, str | None] = {}  # by run id: the owners of runs that have won a wait

    async def run(self, fate: Fate) -> Committed:
        """Apply the batch. Raises the errors of Store.commit. `fate` may make the commit fail at its end."""
        batch, transaction, bugs = self._batch, self._transaction, self._bugs
        await transaction.statement()
        if Bug.NO_FENCE not in bugs:
            await transaction.lock([("engine", batch.engine_id)], exclusive=False)
        await transaction.lock([("batch", batch.engine_id)], exclusive=True)
        if self._has_landed():
            return Committed(landed=True)
        if Bug.UNLOCKED_OWNERS in bugs:
            self._owners = {run_id: stored.run.owner for run_id, stored in self._memory.runs.items()}
        await self._lock_names()
        await self._lock_rows()
        check_runs(self._memory, batch)
        settlement = await self._match()
        await self._lock_winners(settlement)
        await transaction.statement()
        at_once(check_values(batch))
        check_rows(self._memory, batch)
        if fate in ("busy", "unknown_lost"):
            raise StoreBusy("the connection was lost before the commit, as drawn by lot")
        return self._write(settlement)

    def _has_landed(self) -> bool:
        batch, engines = self._batch, self._memory.engines
        if Bug.NO_FENCE in self._bugs and batch.engine_id in engines:
            return engines[batch.engine_id].batch == batch.number
        return has_landed(self._memory, batch)

    # Locks.

    async def _lock_names(self) -> None:
        """Lock the names of events first, in a separate statement. So the matching reads after the locks are taken."""
        returned, left = self._names_to_return(), self._names_to_leave()
        alone = {event.name for event in self._batch.events if event.run_id is None} | returned
        together = {wait.name for wait in self._batch.waits.values() if wait.kind == "event"} | left
        if not alone and not together:
            return
        if Bug.EARLY_SNAPSHOT in self._bugs:
            self._snapshot = self._memory.tables.copied()
        if Bug.NO_NAME_LOCK not in self._bugs:
            for name in sorted(alone | together):
                await self._transaction.lock([("name", name)], exclusive=name in alone)
            if not (self._names_to_return() <= alone and self._names_to_leave() <= alone | together):
                raise StoreBusy("events were given meanwhile to runs of this batch; it may be sent again")
        await self._transaction.statement()

    def _names_to_return(self) -> set[str]:
        """Return the names of events that may go back to their queue or are just leaving it."""
        tables, batch = self._memory.tables, self._batch
        over = {*batch.waits_cleared, *batch.continued}
        read = set(batch.events_read)
        found = {tables.events[""][one].name for one in batch.spread if one in tables.cursors}
        found |= {event.name for event in batch.events if event.run_id in over}
        for run_id in over:
            found |= {one.name for one in tables.events.get(run_id, {}).values() if (run_id, one.id) not in read}
        for run_id, position in batch.waits_dropped:
            events = tables.events.get(run_id, {}).values()
            found |= {one.name for one in events if one.position == position and (run_id, one.id) not in read}
        return found

    def _names_to_leave(self) -> set[str]:
        """Return the names of events for which these runs and positions still wait."""
        return {wait.name for wait in self._waits_to_leave() if wait.kind == "event" and wait.due_at is None}

    def _waits_to_leave(self) -> Iterator[Wait]:
        batch = self._batch
        over = {*batch.waits_cleared, *batch.continued}
        for run_id, position in [*batch.waits_dropped, *((run_id, None) for run_id in over)]:
            for wait in self._memory.tables.waits_of(run_id):
                if position in (None, wait.position):
                    yield wait

    async def _lock_rows(self) -> None:
        """Lock the rows that are written, the rows that must not change, and the rows of runs for whose end other runs
        wait.
        """
        batch, transaction = self._batch, self._transaction
        targets = {wait.target for wait in batch.waits.values() if wait.target is not None}
        for run_id in sorted({*batch.runs, *batch.guards, *targets}):
            await transaction.lock([("run", run_id)], exclusive=run_id in batch.runs)
        await transaction.lock([("key", key) for key in sorted(batch.keys)], exclusive=True)
        await transaction.lock([("mail", f"{mail_id}") for mail_id in sorted(batch.mail_done)], exclusive=True)
        if batch.tasks is not None:
            tasks = {answer.task_id for answer in batch.tasks.answers} | set(batch.tasks.withdrawn)
            tasks |= {one.task_id for one in batch.tasks.released}
            await transaction.lock([("task", task_id) for task_id in sorted(tasks)], exclusive=True)
        if batch.shared is not None:
            versioned = {("record", f"{one.kind}/{one.name}") for one in batch.shared.records}
            versioned |= {("token", one.name) for one in batch.shared.tokens}
            versioned |= {("handler", f"{one.topic}/{one.name}") for one in batch.shared.handlers}
            await transaction.lock(sorted(versioned), exclusive=True)
        positions = {f"{wait.run_id}/{wait.position}" for wait in self._waits_to_leave()}
        await transaction.lock([("wait", position) for position in sorted(positions)], exclusive=True)

    async def _lock_winners(self, settlement: Settlement) -> None:
        """Check that the positions that were won are still open, and reserve the ids of mail. The owner of a run that
        has won a wait gets mail. So the owner must not change before the commit.
        """
        memory, batch, transaction = self._memory, self._batch, self._transaction
        put = {(wait.run_id, wait.position) for wait in batch.waits.values()}
        won = sorted({(one.run_id, one.position) for one in settlement.found.won} - put)
        await transaction.lock([("wait", f"{run_id}/{position}") for run_id, position in won], exclusive=True)
        for run_id, position in won:
            group = [*memory.tables.waits.get(run_id, {}).get(position, {}).values()]
            if not group or any(wait.due_at == 0 for wait in group):
                raise StoreBusy("a position was won or left meanwhile; the batch may be sent again")
        winners = winners_elsewhere(batch, settlement.found)
        if Bug.UNLOCKED_OWNERS not in self._bugs:
            await transaction.lock([("run", run_id) for run_id in winners], exclusive=False)
            self._owners = {run_id: memory.runs[run_id].run.owner for run_id in winners}
        self._mail_base = memory.mail_count
        memory.mail_count += len(batch.mail) + len(winners)

    # Matching.

    async def _match(self) -> Settlement:
        """Match the batch's events and waits."""
        tables, transaction = self._memory.tables, self._transaction
        # The numbers come from a sequence. If a transaction fails, its numbers are lost.
        self._base = tables.numbered(self._batch)
        settlement = await self._settled()
        await transaction.lock([("event", event.id) for event in settlement.moved], exclusive=True)
        queue = tables.events.get("", {})
        if any(event.id not in queue for event in settlement.moved):
            raise StoreBusy("an event was taken by another transaction meanwhile; the batch may be sent again")
        return settlement

    async def _settled(self) -> Settlement:
        matching = settle(self._batch, self._base)
        try:
            question = next(matching)
            while True:
                await self._transaction.statement()
                question = matching.send(self._answer(question))
        except StopIteration as stop:
            settlement: Settlement = stop.value
            return settlement

    def _answer(self, question: Question) -> Any:
        """Answer a question from the committed tables and this transaction's own writes."""
        tables = (self._snapshot or self._memory.tables).copied()
        tables.begin(self._batch, self._base)
        statuses = {run_id: stored.run.status for run_id, stored in self._memory.runs.items()}
        return Answers(tables, self._batch, statuses).answer(question)

    # The end.

    def _write(self, settlement: Settlement) -> Committed:
        """Make all writes visible at once."""
        memory, batch = self._memory, self._batch
        memory.tables.begin(batch, self._base)
        memory.tables.finish(batch, settlement)
        count, memory.mail_count = memory.mail_count, self._mail_base
        committed = write_batch(memory, batch, settlement, self._owners)
        memory.mail_count = max(count, memory.mail_count)
        if Bug.MAIL_CURSOR in self._bugs and batch.mail_done:
            read = max(batch.mail_done)
            for mail_id in [one.id for one in memory.mail.values() if one.id <= read and self._is_own(one)]:
                del memory.mail[mail_id]
        return committed

    def _is_own(self, mail: Mail) -> bool:
        stored = self._memory.runs.get(mail.run_id)
        return stored is not None and stored.run.owner == self._batch.engine_id
