"""The host of operations. It keeps runs in memory, and performs the kernel's decisions for them.

Nothing is written here. The progress of runs becomes ops for the coordinator (activations.py). If a run is dropped
before its op is committed, the next engine that takes the run reads it again (run_reader.py).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from perdure.kernel.cooperation import token_tags
from perdure.kernel.effects import Begin, Drop, Examine, Finish, Notified
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.models.common.background import BackgroundTasks
from perdure.models.common.crash_blame import Blame
from perdure.models.common.fence_check import FenceCheck
from perdure.models.common.host_parts import HostParts
from perdure.models.common.step_tasks import Carriers
from perdure.models.cooperation.activations import Activations
from perdure.models.cooperation.cause_reader import CauseReader
from perdure.models.cooperation.executor import AttemptContexts, Executor
from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.models.cooperation.holds import Holds
from perdure.models.cooperation.live_runs import LiveRuns
from perdure.models.cooperation.operation_parts import MailReader, OperationParts
from perdure.models.cooperation.row_codec import RowCodec
from perdure.models.cooperation.runner import OperationRunner
from perdure.models.cooperation.transactions import Transactions
from perdure.models.cooperation.versions import Operations


class OperationHost:
    """All runs of operations that this engine has in memory."""

    def __init__(
        self,
        parts: HostParts,
        *,
        operations: Operations,
        registry: HandlerRegistry,
        threads: ThreadPoolExecutor,
        attempts: AttemptContexts,
        mail: MailReader,
    ) -> None:
        rows = RowCodec(parts.codec)
        self._departures = parts.departures
        self._operations = operations
        self._background = BackgroundTasks()
        self._blame = Blame(parts.clock, parts.coordinator)
        self._holds = Holds(parts, rows, operations)
        self._runs = LiveRuns(parts)
        self._live = self._runs.by_id
        self.runner = OperationRunner(
            operations=operations, registry=registry, rows=rows, codec=parts.codec, ids=parts.ids, now=parts.clock.now
        )
        fence_check = FenceCheck(parts.store, parts.coordinator)
        self._carriers = Carriers(fence_check)
        transactions = Transactions(parts)
        executor = self._executor = Executor(
            parts=parts,
            threads=threads,
            attempts=attempts,
            transactions=transactions,
            causes=CauseReader(parts.store, rows, self.runner.notifications.failures),
            blame=self._blame,
            fence_check=fence_check,
        )
        shared = OperationParts(
            engine=parts,
            operations=operations,
            registry=registry,
            rows=rows,
            runner=self.runner,
            runs=self._runs,
            holds=self._holds,
            blame=self._blame,
            background=self._background,
            mail=mail,
        )
        self._activations = Activations(shared, executor, self._carriers, transactions)
        self._steps = self._activations.steps
        self._reader = self._activations.reader
        self.expect = self._runs.expect
        self.proceed = self._activations.proceed
        self.waiting = self._reader.waiting

    @property
    def steps_running(self) -> int:
        return len(self._steps.slots)

    @property
    def busy(self) -> bool:
        """Whether the host has work to do now, without waiting for a timer."""
        return bool(self._background) or self._activations.busy

    @property
    def live_runs(self) -> int:
        return len(self._live)

    def perform(self, effect: Begin | Drop | Examine | Finish | Notified) -> None:
        """Perform an effect of a committed decision."""
        match effect:
            case Begin():
                self._begin(effect)
            case Notified():
                self._notified(effect)
            case Finish():
                self._close(effect.run.id)
            case Examine():
                self._background.start(self._holds.examine(effect.run))
            case Drop():
                self._drop(effect.run_id)

    def examine_left(self) -> None:
        """Complete the holds of runs whose rows no engine has examined: see `Holds.examine_left`."""
        if self._operations:
            self._background.start(self._holds.examine_left())

    async def drain(self, grace_s: float) -> None:
        """Start nothing new. Wait until running code has ended, at most for the grace period. Then wait until
        all drafts (the writes of each run's next commit) are complete."""
        await self._steps.drain(grace_s)
        await self._activations.drafts.drain()

    def closing(self) -> Pieces[None]:
        """Close every run in memory, in pieces. This is the first part of `close`."""
        self._steps.slots.is_closed = True
        for start, part in parts([*self._live]):
            if start:
                yield
            for run_id in part:
                self._close(run_id)

    def close(self) -> None:
        """Close every run in memory. Writes nothing."""
        at_once(self.closing())
        self._background.close()
        self._reader.close()
        self._carriers.close()

    # Loading and starting runs.

    def _begin(self, effect: Begin) -> None:
        run = effect.run
        expected = self._runs.expected.pop(run.id, None)
        known = self._live.get(run.id)
        if known is not None and known.claim == run.claim and not known.is_closed:
            return  # The run has begun already. Recovery claimed it while it was being read because of a conflict.
        if known is not None:
            self._close(run.id)
        parent = self._live.get(run.parent_id or "")
        # One of the run's own tokens may have been cancelled before the run existed. Then the run could not be
        # notified. A request to the run's parent is a request to this run too.
        is_asked = bool(token_tags(run.tags)) or (parent is not None and parent.is_stale)
        if expected is None or effect.input is None or is_asked:
            self._reader.load(run, effect.notified)
            return
        if parent is not None:
            expected.asks = parent.asks
        self._live[run.id] = expected
        self._activations.turns.soon(expected, partial(self._activations.go_on, expected))
        self._runs.evict()

    def _notified(self, effect: Notified) -> None:
        loading = self._reader.loading.get(effect.run_id)
        if loading is not None:
            loading.notified, loading.is_outdated = effect.number, True
            return
        live = self._live.get(effect.run_id)
        if live is None:
            return  # The next engine that takes the run reads the notification together with the run.
        if live.is_drafting:
            self._activations.drafts.defer(live, effect)
        else:
            self._activations.take_in(live, effect)

    # Dropping runs.

    def _drop(self, run_id: str) -> None:
        live = self._live.get(run_id)
        until = None if live is None else live.until
        if live is None and run_id not in self._reader.loading:
            return
        self._close(run_id)
        self._departures.left(run_id, until)

    def _close(self, run_id: str) -> None:
        self._blame.forget(run_id)
        self._reader.loading.pop(run_id, None)
        live = self._runs.remove(run_id)
        if live is None:
            return
        live.close()
        self._steps.landings.forget(live)


__all__ = ["OperationHost"]
