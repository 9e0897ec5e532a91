"""From decisions to one batch: run and wait rows in their final state, journal and audit rows appended."""

from __future__ import annotations

from perdure.kernel.batch import Batch, RunWrite
from perdure.kernel.decide import Decision
from perdure.kernel.records import Run


class Assembly:
    """A batch in the making, with the state its runs will have once it is committed."""

    __slots__ = ("batch", "runs", "writes")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.runs: dict[str, Run] = {}
        self.writes = 0

    def add(self, before: Run | None, decision: Decision) -> None:
        """Take in a decision about a run that was `before` (None: not there)."""
        run = decision.run
        if run is None:
            return
        batch = self.batch
        self.runs[run.id] = run
        if decision.entries:
            batch.journal.extend(decision.entries)
            self.writes += 1
        if decision.row:
            self._add_row(before, run, decision)
        if decision.audit:
            batch.audit.extend(decision.audit)
        if decision.archive_from is not None:
            batch.archive.append((run.id, decision.archive_from, run.attempt - 1))
        if decision.waits_cleared or decision.waits or decision.waits_dropped:
            self._add_waits(run.id, decision)

    def _add_row(self, before: Run | None, run: Run, decision: Decision) -> None:
        self.writes += 1
        write = self.batch.runs.get(run.id)
        if write is None:
            self.batch.runs[run.id] = RunWrite(
                run=run,
                expected_version=None if before is None else before.version,
                expected_owner=None if before is None else before.owner,
                input=decision.input,
                outcome=decision.outcome,
            )
            return
        write.run = run
        if decision.outcome is not None:
            write.outcome = decision.outcome

    def _add_waits(self, run_id: str, decision: Decision) -> None:
        batch = self.batch
        self.writes += 1
        if decision.waits_cleared:
            for key in [key for key in batch.waits if key[0] == run_id]:
                del batch.waits[key]
            batch.waits_cleared.append(run_id)
        for position in decision.waits_dropped:
            batch.waits.pop((run_id, position), None)
            batch.waits_dropped.append((run_id, position))
        for wait in decision.waits:
            batch.waits[run_id, wait.position] = wait
