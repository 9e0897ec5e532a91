"""An engine's memory of its runs. It has their state and their mailboxes after the last commit. The state in memory is
updated after the state in the store.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.coordinator.batch_builder import BatchBuilder
from perdure.kernel import wait_matches
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.effects import Deliver
from perdure.kernel.operation_notices import Readiness
from perdure.kernel.runs import Outcome, Run
from perdure.kernel.wait_matches import EMPTY, Mailbox
from perdure.ports import LoadedRun


class Memory:
    """The runs of this engine, their mailboxes if they are not empty, and the readiness of operations' runs.

    `untaken` has the runs that a recovery has claimed and not taken yet, with their claims. During a request for a
    claim, `changed` has the runs whose state in memory has changed since the request was sent. At all other times it is
    None.
    """

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.mailboxes: dict[str, Mailbox] = {}
        self.readiness: dict[str, Readiness] = {}
        self.untaken: dict[str, int] = {}
        self.changed: set[str] | None = None

    def taken(self, run_id: str, claim: int) -> None:
        """Note that a `Take` was decided or refused. A `Take` with an earlier claim of the run changes nothing."""
        if self.untaken.get(run_id) == claim:
            del self.untaken[run_id]

    def mailbox(self, run_id: str) -> Mailbox:
        return self.mailboxes.get(run_id, EMPTY)

    def keep_mailbox(self, run_id: str, mailbox: Mailbox) -> None:
        if mailbox.is_empty:
            self.mailboxes.pop(run_id, None)
        else:
            self.mailboxes[run_id] = mailbox

    def adopt(self, loaded: Iterable[LoadedRun]) -> None:
        """Add runs of this engine in their stored state. None of them may be damaged."""
        for one in loaded:
            if self.changed is not None:
                self.changed.add(one.run.id)
            self.runs[one.run.id] = one.run
            self.keep_mailbox(one.run.id, wait_matches.opened(one.waits, one.events))

    def forget(self, run_ids: Iterable[str]) -> list[str]:
        """Remove runs from memory. Return the ids of those runs that were in memory."""
        if self.changed is not None:
            run_ids = list(run_ids)
            self.changed.update(run_ids)
        known = [run_id for run_id in run_ids if self.runs.pop(run_id, None) is not None]
        for run_id in known:
            self.mailboxes.pop(run_id, None)
            self.readiness.pop(run_id, None)
        return known

    def follow(self, builder: BatchBuilder, committed: Committed) -> None:
        """Take over the state after a batch that was committed."""
        runs, me = self.runs, builder.batch.engine_id
        if self.changed is not None:
            self.changed.update(builder.runs)
        if committed.awake:
            for run_id in committed.awake:
                builder.runs[run_id] = builder.batch.runs[run_id].awake or builder.runs[run_id]
        for run_id, run in builder.runs.items():
            if run.owner == me:
                runs[run_id] = run
            else:
                runs.pop(run_id, None)
                if run_id in self.mailboxes:
                    del self.mailboxes[run_id]
                if run_id in self.readiness:
                    del self.readiness[run_id]
        for run_id, mailbox in builder.mailboxes.items():
            if run_id in runs:
                self.keep_mailbox(run_id, mailbox)
        if builder.readiness:
            self.readiness.update({run_id: known for run_id, known in builder.readiness.items() if run_id in runs})
        for run_id, waits, events in committed.taken:
            self.keep_mailbox(run_id, wait_matches.opened(waits, events))

    def win(self, batch: Batch, committed: Committed) -> tuple[list[Deliver], list[str]]:
        """Take over the winners of waits that the transaction found. Return the deliveries to this engine's runs. Also
        return the ids of winners that no living engine owns.
        """
        delivered: list[Deliver] = []
        unowned: list[str] = []
        for won in committed.won:
            if won.run_id not in self.runs:
                if won.run_id not in committed.notified:
                    unowned.append(won.run_id)
                continue
            mailbox = self.mailbox(won.run_id)
            if won.event is not None:
                self.keep_mailbox(won.run_id, wait_matches.give(mailbox, won.event))
            elif won.position not in mailbox.won:
                self.keep_mailbox(won.run_id, wait_matches.fire(mailbox, won.position, won.option))
            outcome: tuple[Run, Outcome] | None = None
            if won.target is not None and (write := batch.runs.get(won.target)) is not None:
                outcome = write.run, write.outcome or Outcome()
            delivered.append(Deliver(won.run_id, won.position, won.option, won.event, won.target, outcome))
        return delivered, unowned
