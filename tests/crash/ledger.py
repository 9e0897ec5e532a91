"""What has been committed, as seen at the store's door: steps ask it whether they may still run."""

from __future__ import annotations

from perdure import current_step, resource
from perdure.kernel.batch import Batch, Committed
from perdure.ports import Store
from perdure.testing import StoreProxy


class Ledger:
    """Remembers every journal entry from the moment its commit landed, and every start of a step's body.

    It outlives restarts; it is handed to `Environment(watch=…)` and to the engine as a resource.
    """

    def __init__(self) -> None:
        self.starts: list[tuple[str, str]] = []  # run id, position
        self.violations: list[str] = []
        self.batches: list[Batch] = []
        self._committed: dict[str, dict[str, int]] = {}

    def watch(self, inner: Store) -> Store:
        return _LedgerStore(inner, self)

    def step_started(self) -> None:
        """Called first thing in every step's body."""
        me = current_step()
        self.starts.append((me.run_id, me.position))
        if me.position in self._committed.get(me.run_id, {}):
            self.violations.append(f"run {me.run_id} began {me.name!r} at {me.position} after its entry was committed")

    def committed(self, batch: Batch) -> None:
        for run_id, first, _ in batch.archive:
            kept = {position: seq for position, seq in self._committed.get(run_id, {}).items() if seq < first}
            self._committed[run_id] = kept
        for run_id in batch.continued:
            self._committed.pop(run_id, None)
        for entry in batch.journal:
            self._committed.setdefault(entry.run_id, {})[entry.position] = entry.seq
        self.batches.append(batch)


def step_started() -> None:
    resource(Ledger).step_started()


class _LedgerStore(StoreProxy):
    def __init__(self, inner: Store, ledger: Ledger) -> None:
        super().__init__(inner)
        self._ledger = ledger

    async def commit(self, batch: Batch) -> Committed:
        committed = await super().commit(batch)
        self._ledger.committed(batch)
        return committed
