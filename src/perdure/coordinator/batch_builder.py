"""The batch builder makes one batch from decisions. The batch has the final state of run and wait rows, and new journal
and audit rows.

batch_decisions.py handles how the ops of one batch affect each other.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from perdure.kernel.artifacts import ArtifactWrites
from perdure.kernel.batch import Batch, RunWrite, is_brief_change
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.decision import Decision
from perdure.kernel.events import Event
from perdure.kernel.invariants import check_entry
from perdure.kernel.mail import answer, mail_of
from perdure.kernel.operation_notices import Readiness
from perdure.kernel.ops import Op
from perdure.kernel.rows import Entry
from perdure.kernel.rules.delivery import FromCommit
from perdure.kernel.runless_rows import SharedWrites
from perdure.kernel.runs import Run
from perdure.kernel.tasks import TaskWrites
from perdure.kernel.wait_matches import Mailbox


class BatchBuilder:
    """Builds a batch. It also keeps the state that the runs, their mailboxes and their readiness have after the commit
    of the batch.
    """

    __slots__ = ("_places", "_winning", "batch", "children", "mailboxes", "readiness", "runs", "writes")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.runs: dict[str, Run] = {}
        self.mailboxes: dict[str, Mailbox] = {}
        self.readiness: dict[str, Readiness] = {}
        self.children: dict[str, list[str]] = {}  # by parent: the new, attached children of this batch
        self.writes = 0
        self._winning: dict[str, dict[str, None]] = {}  # by run: the positions at which events have won in this batch
        self._places: dict[str, int] = {}  # event id -> index in the batch, for events that were sent to one run

    def add(self, before: Run | None, decision: Decision) -> None:
        """Add a decision about a run. `before` is the run's state before the decision. It is None if the run is new, or
        if the decision is about no run.
        """
        run = decision.run
        if decision.events or decision.spread or decision.dead_letter:
            self._add_events(decision)
        elif decision.is_forced:
            self.writes += 1
        if decision.cooperation is not None:
            self.add_cooperation(decision.cooperation)
        for op in decision.mail:
            self.leave_mail(op, is_awaited=False)
        if decision.tasks is not None:
            self._add_tasks(decision.tasks)
        if decision.shared is not None:
            self._add_shared(decision.shared)
        for other in decision.unchanged:
            self.batch.guards[other.id] = (other.owner, other.version, other.claim)
        if run is None:
            return
        batch = self.batch
        self.runs[run.id] = run
        if decision.readiness is not None:
            self.readiness[run.id] = decision.readiness
        if decision.entries:
            batch.journal += decision.entries
            self.writes += 1
        if decision.row:
            self._add_row(before, run, decision)
        if decision.continued:
            batch.journal = [entry for entry in batch.journal if entry.run_id != run.id]
            batch.waits = {key: wait for key, wait in batch.waits.items() if key[0] != run.id}
            batch.audit = [row for row in batch.audit if row.run_id != run.id]
            batch.continued.append(run.id)
            self._take_back(run.id, None)
        if decision.audit:
            batch.audit += decision.audit
        if decision.archive_from is not None:
            batch.archive.append((run.id, decision.archive_from, run.attempt - 1))
        if decision.waits_cleared or decision.waits or decision.waits_dropped:
            self._add_waits(run.id, decision)
        if decision.published or decision.stream_items:
            self._add_said(decision)
        if decision.artifacts is not None:
            self._add_artifacts(decision.artifacts)
        if decision.mailbox is not None or decision.guard or decision.consumed or decision.events_read:
            self._add_rest(before, run.id, decision)

    def answer(self, mail_id: int, reply: Any) -> None:
        """Let this batch consume a mail, and send this reply to it."""
        self.batch.mail_done[mail_id] = answer(reply)
        self.writes += 1

    def leave_mail(self, op: Op, *, is_awaited: bool) -> str:
        """Leave an op for the engine that owns its run. Return the slot for the reply. Return "" if nobody waits for a
        reply.
        """
        batch = self.batch
        slot = f"{batch.engine_id}/{batch.number}/{len(batch.mail)}" if is_awaited else ""
        batch.mail.append(mail_of(op, batch.engine_id, slot))
        self.writes += 1
        return slot

    def add_entries(self, entries: tuple[Entry, ...]) -> None:
        """Add the entries of a plain advance. A plain advance does not change the run's state. Raises
        InvariantViolated.
        """
        for entry in entries:
            check_entry(entry)
        self.batch.journal += entries
        self.writes += 1

    def _add_row(self, before: Run | None, run: Run, decision: Decision) -> None:
        self.writes += 1
        write = self.batch.runs.get(run.id)
        if write is None:
            self.batch.runs[run.id] = write = RunWrite(
                run=run,
                expected_version=None if before is None else before.version,
                expected_owner=None if before is None else before.owner,
                expected_claim=0 if before is None else before.claim,
                input=decision.input,
                outcome=decision.outcome,
                born=self.batch.numbered,
                is_brief=before is not None and is_brief_change(before, run),
            )
            if before is None and run.parent_id is not None and run.bond != "detached":
                self.children.setdefault(run.parent_id, []).append(run.id)
        else:
            write.is_brief = write.is_brief and is_brief_change(write.run, run)
            write.run = run
            if decision.input is not None:
                write.input = decision.input
            if decision.outcome is not None:
                write.outcome = decision.outcome
        write.awake = decision.awake
        if decision.awake is not None:
            write.is_brief = write.is_brief and is_brief_change(run, decision.awake)
        write.dozing = run.revision

    def _add_waits(self, run_id: str, decision: Decision) -> None:
        batch = self.batch
        self.writes += 1
        if decision.waits_cleared:
            for key in [key for key in batch.waits if key[0] == run_id]:
                del batch.waits[key]
            batch.waits_cleared.append(run_id)
            self._take_back(run_id, None)
        for position in decision.waits_dropped:
            option = 0
            while batch.waits.pop((run_id, position, option), None) is not None:
                option += 1
            batch.waits_dropped.append((run_id, position))
            self._take_back(run_id, position)
        for wait in decision.waits:
            if wait.kind == "event":
                batch.numbered += 1
                wait = replace(wait, number=batch.numbered)  # noqa: PLW2901
            batch.waits[run_id, wait.position, wait.option] = wait

    def _take_back(self, run_id: str, position: str | None) -> None:
        """Take back the events that this batch gave to a position of a run. With None, take back the events of all
        positions of the run. A later op of the batch has closed the position.
        """
        winning = self._winning.get(run_id)
        if winning is None or (position is not None and position not in winning):
            return
        batch = self.batch
        for index, event in enumerate(batch.events):
            if event.run_id == run_id and event.position is not None and position in (None, event.position):
                batch.events[index] = replace(event, position=None, option=0)
        if batch.events_given:
            batch.events_given = [
                given for given in batch.events_given if given[0] != run_id or position not in (None, given[2])
            ]
        if position is None:
            winning.clear()
        else:
            del winning[position]

    def _add_said(self, decision: Decision) -> None:
        batch = self.batch
        self.writes += 1
        batch.stream_items.extend(decision.stream_items)
        for value in decision.published:
            key = (value.run_id, value.key)
            known = batch.published.get(key)
            if known is None or (value.mark or (0, 0)) > (known.mark or (0, 0)):
                batch.published[key] = value

    def _add_artifacts(self, artifacts: ArtifactWrites) -> None:
        self.writes += 1
        if self.batch.artifacts is None:
            self.batch.artifacts = ArtifactWrites()
        self.batch.artifacts.add(artifacts)

    def _add_tasks(self, tasks: TaskWrites) -> None:
        self.writes += 1
        if self.batch.tasks is None:
            self.batch.tasks = TaskWrites()
        self.batch.tasks.add(tasks)

    def _add_shared(self, shared: SharedWrites) -> None:
        self.writes += 1
        if self.batch.shared is None:
            self.batch.shared = SharedWrites()
        self.batch.shared.add(shared)

    def add_cooperation(self, added: Cooperation) -> None:
        """Add the rows that an operation's run wrote."""
        self.writes += 1
        if self.batch.cooperation is None:
            self.batch.cooperation = Cooperation()
        self.batch.cooperation.add(added)

    def _add_events(self, decision: Decision) -> None:
        batch = self.batch
        self.writes += 1
        for event in decision.events:
            batch.numbered += 1
            self._add_event(replace(event, number=batch.numbered))
        if isinstance(decision.reply, FromCommit):
            batch.pending_max[decision.reply.event_id] = 0 if decision.reply.strict else decision.reply.pending_max
        if decision.spread is not None:
            batch.spread.append(decision.spread)
        if decision.dead_letter is not None:
            batch.dead_letters_gone.append(decision.dead_letter)

    def _add_event(self, event: Event) -> None:
        if event.run_id is not None:
            self._places[event.id] = len(self.batch.events)
        self.batch.events.append(event)
        if event.position is not None:
            self._winning.setdefault(event.run_id or "", {})[event.position] = None
        if event.key is not None:
            self.batch.keys[event.key] = event.id

    def _add_rest(self, before: Run | None, run_id: str, decision: Decision) -> None:
        batch = self.batch
        if decision.mailbox is not None:
            self.mailboxes[run_id] = decision.mailbox
        for event in decision.events_given:
            self._winning.setdefault(run_id, {})[event.position or ""] = None
            # If an event is new in this batch, it is written together with the position that it has won.
            index = self._places.get(event.id)
            if index is not None:
                batch.events[index] = replace(batch.events[index], position=event.position, option=event.option)
            else:
                batch.events_given.append((run_id, event.id, event.position or "", event.option))
            self.writes += 1
        for event_id in decision.events_read:
            batch.events_read.append((run_id, event_id))
        if decision.dead:
            batch.dead += decision.dead
            self.writes += 1
        if decision.guard and before is not None and run_id not in batch.runs:
            batch.guards[run_id] = (before.owner, before.version, before.claim)
        batch.consumed += decision.consumed
