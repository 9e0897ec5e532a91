"""The engine: puts store, coordinator and models together, and is what users hold."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from perdure.arguments import Duration, checked, span_of
from perdure.client import Client
from perdure.coordinator.deciding import Hearing, Outlook
from perdure.coordinator.notices import Outage
from perdure.coordinator.patience import Limits
from perdure.coordinator.recovery import Recovery, RecoveryReport
from perdure.coordinator.sweep import Answered, Sweeper
from perdure.coordinator.timers import Timer, Timers, pause
from perdure.coordinator.turns import in_turns
from perdure.coordinator.waking import Waker
from perdure.emissions import Cooperator
from perdure.errors import DeadlineExceeded, EngineStopped, Fenced, InvalidArguments, PerdureError, StoreError
from perdure.kernel import ops
from perdure.kernel.effects import Begin, Deliver, Drop, Effect, Examine, Finish, Look, Proceed, Published, Rearm
from perdure.kernel.records import Run
from perdure.kernel.status import ACTIVE, FINISHED
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.host import OperationHost
from perdure.models.cooperation.levels import Levels
from perdure.models.cooperation.live import LiveOperation
from perdure.models.cooperation.scope import HIERARCHY_LEVELS_MAX
from perdure.models.deployment import DEPLOYMENT
from perdure.models.functions.blocking import BlockWatch
from perdure.models.functions.catalogue import Catalogue
from perdure.models.functions.compensation import is_waiting
from perdure.models.functions.context import enter_operation
from perdure.models.functions.define import RunCall, Workflow
from perdure.models.functions.failures import to_failure
from perdure.models.functions.host import FunctionHost
from perdure.models.functions.records import Records
from perdure.models.functions.values import PAYLOAD_MAX_BYTES
from perdure.obstacles import Strandings
from perdure.ports import Clock, Codec, Ids, LoadedRun, Probe, Store, new_id
from perdure.registry import Registry
from perdure.resources import Resources
from perdure.sending import PENDING_MAX, RETENTION

log = logging.getLogger("perdure")

_PURGE_EVERY_S = 60.0
_INVITE_AGAIN_S = 1.0
_DUE_AT_ONCE_MAX = 384  # in the queue, or being read: what two batches take, so that the next one is there in time
_KEEPER = "engine"  # who keeps definitions, in their records


class _Hearing(Hearing):
    """The engine's operations, which are there a little later than the coordinator that asks them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def outlook(self) -> Outlook:
        return self._engine.operations.outlook()

    def heard(self, run_id: str) -> int:
        return self._engine.operations.heard(run_id)

    def is_undone(self, run_id: str) -> bool:
        return self._engine.operations.is_undone(run_id)

    def is_asked(self, run_id: str, heard: int) -> bool:
        return self._engine.operations.is_asked(run_id, heard)


@checked(own=("workflows",))
class Engine(Client):
    """Runs workflows on a store. Use it as an async context manager, one per process and store.

    `store` is a URL ("sqlite:///shop.db", "postgresql://…", "memory://") or a Store. `workflows` are those it can run;
    by default all that were decorated. At most `steps_max` steps run at once, plain functions in `threads_max` threads,
    those with `process=True` in `processes_max` processes (as many as there are processors). Operations' hierarchies
    have at most `hierarchy_levels_max` levels.

    Leaving the context shuts it down gracefully; killing the process at any moment loses nothing.
    """

    _kind = "engine"

    def __init__(
        self,
        store: str | Store,
        *,
        workflows: Iterable[Workflow[Any, Any] | Operation[Any]] | None = None,
        resources: Mapping[type[Any], Callable[[], Any]] | None = None,
        clock: Clock | None = None,
        codec: Codec | None = None,
        ids: Ids = new_id,
        limits: Limits | None = None,
        live_runs_max: int = 20_000,
        callbacks_max: int = 100_000,
        payload_bytes_max: int = PAYLOAD_MAX_BYTES,
        steps_max: int = 1000,
        threads_max: int = 32,
        processes_max: int | None = None,
        recoveries_max: int = 5,
        hierarchy_levels_max: int = HIERARCHY_LEVELS_MAX,
        event_retention: Duration = RETENTION,
        events_pending_max: int = PENDING_MAX,
        poll_s: float | msgspec.UnsetType | None = msgspec.UNSET,
        blocked_warn_s: float = 1.0,
        grace_s: float = 10.0,
        probe: Probe | None = None,
    ) -> None:
        super().__init__(
            store,
            clock=clock,
            codec=codec,
            ids=ids,
            limits=limits,
            payload_bytes_max=payload_bytes_max,
            event_retention=event_retention,
            events_pending_max=events_pending_max,
            poll_s=poll_s,
            probe=probe,
        )
        self._workflows = Registry(workflows)
        own = {
            Catalogue: Catalogue(lambda: self._store, self._workflows),
            Cooperator: Cooperator(self, lambda: self._levels),
            Records: Records(lambda: self._store, self._codec),
        }
        self._resources = Resources(resources or {}, own)
        self._live_runs_max = live_runs_max
        self._callbacks_max = callbacks_max
        self._steps_max = steps_max
        self._threads_max = threads_max
        self._processes_max = processes_max
        self._recoveries_max = recoveries_max
        if hierarchy_levels_max < 1:
            raise InvalidArguments(f"a hierarchy has at least one level: hierarchy_levels_max={hierarchy_levels_max}")
        self._hierarchy_levels_max = hierarchy_levels_max
        self._blocked_warn_s = blocked_warn_s
        self._grace_s = grace_s
        self._deadlines: dict[str, Timer] = {}
        self._is_inviting = False
        self._kept: set[tuple[str, str]] = set()  # graphs whose definitions the store has
        self._block_watch: BlockWatch | None = None
        self._levels: Levels
        self._recovery: Recovery
        self._functions: FunctionHost
        self.operations: OperationHost  # not for users
        self._sweeper: Sweeper
        self._waker: Waker
        self._has_examined = False  # holds that were left
        self._timers: Timers

    # Life.

    async def open(self) -> None:
        """Open the store, register, recover what is there to go on with. Raises StoreBusy if the store cannot be had
        now, StoreUnavailable if it went away meanwhile, StoreBroken, DuplicateWorkflow."""
        self._assemble()
        try:
            await self._store.open()
            await self._resources.acquire()
            await self._coordinator.start()
            if operations := self._workflows.operations:
                await self._book.register([*operations], self._clock.now())
        except BaseException:
            self._coordinator.kill()
            self._functions.close()
            self.operations.close()
            await self._resources.release()
            await self._close_store()
            raise
        self._state = "open"
        try:
            await self._keep_definitions(self._workflows.values())
            await self.recover()
            await self._warn_of_missing_code()
        except BaseException:
            await self.shutdown(grace=0)
            raise
        self._invite_soon()
        self._watch(self._recover_others, lambda: self._recovery.is_behind)
        if self._poll_s is not None:
            self._background(self._purge_regularly())
            self._block_watch = BlockWatch(self._blocked_warn_s)

    def _assemble(self) -> None:
        super()._assemble()
        self._timers = Timers(self._clock, self._room, self._coordinator.firing)
        self._coordinator.taken = self._timers.go_on
        self._sweeper = Sweeper(
            self._own_store,
            self._clock,
            self._timers,
            offers=self._workflows.offers,
            wake=self._wake,
            expire=self._expire,
            background=self._background,
            me=lambda: self._coordinator.engine.id,
        )
        self._recovery = Recovery(
            self._own_store,
            self._coordinator,
            self._sweeper,
            self._clock,
            recoveries_max=self._recoveries_max,
            offers=self._workflows.offers,
            fingerprint=DEPLOYMENT.digest,
            adopted=self._arm_deadline,
            waiting=self._waiting,
            background=self._background,
        )
        self._functions = FunctionHost(
            store=self._own_store,
            clock=self._clock,
            codec=self._codec,
            ids=self._ids,
            timers=self._timers,
            owe=self._coordinator.owe,
            submit=self._coordinator.submit,
            insist=self._coordinator.insist,
            request=self._coordinator.request,
            prove=self._coordinator.prove,
            stopping=self._coordinator.stopping,
            me=lambda: self._coordinator.engine,
            lookup=self._coordinator.loaded,
            box=self._coordinator.box,
            dropped=self._sweeper.left,
            workflows=self._workflows,
            resources=self._resources.get,
            live_runs_max=self._live_runs_max,
            callbacks_max=self._callbacks_max,
            payload_bytes_max=self._payload_bytes_max,
            steps_max=self._steps_max,
            threads_max=self._threads_max,
            processes_max=self._processes_max,
        )
        self.operations = OperationHost(
            store=self._own_store,
            clock=self._clock,
            codec=self._codec,
            ids=self._ids,
            timers=self._timers,
            owe=self._coordinator.owe,
            request=self._coordinator.request,
            prove=self._coordinator.prove,
            stopping=self._coordinator.stopping,
            me=lambda: self._coordinator.engine,
            lookup=self._coordinator.loaded,
            dropped=self._sweeper.left,
            operations=self._workflows.operations,
            book=self._book,
            threads=self._functions.threads,
            enter=partial(enter_operation, self._resources.get),
            live_runs_max=self._live_runs_max,
            payload_bytes_max=self._payload_bytes_max,
            steps_max=self._steps_max,
            hierarchy_levels_max=self._hierarchy_levels_max,
            read_mail=self._try_to_read_mail,
        )
        self._drafting = self.operations.drafting
        levels_max, lookup = self._hierarchy_levels_max, self._coordinator.loaded
        self._levels = Levels(self._patient_store, self._codec, lookup, levels_max)
        self._waker = Waker(
            self._own_store,
            self._coordinator,
            self._clock,
            prepare=self._functions.prepare,
            forgo=self._functions.forgo,
            served=self._timers.go_on,
            background=self._background,
        )

    @property
    def _hearing(self) -> Hearing:
        return _Hearing(self)

    async def _waiting(self, loaded: Sequence[LoadedRun]) -> set[str]:
        """Of runs that roll back, those that execute nothing now."""
        operations = [one.run for one in loaded if one.run.model == "operation"]
        others = [one for one in loaded if one.run.model != "operation"]
        now = self._clock.now()
        return {
            *(one.run.id for one in others if is_waiting(one.waits, now)),
            *(one.run.id for one in loaded if any(w.kind == "retry" and (w.due_at or 0) > now for w in one.waits)),
            *(await self.operations.waiting(operations) if operations else ()),
        }

    async def _recover_others(self) -> None:
        report = await self._recovery.run()
        if self._workflows.operations:
            if report.engines_buried:
                await self._warn_of_missing_code()
            # Who has died may have registered handlers, and told nobody.
            await self._book.load(again=True)
            self._invite_soon()

    def _invite_soon(self) -> None:
        if self._book.untold and not self._is_inviting:
            self._is_inviting = True
            self._background(self._invite_all())

    async def _invite_all(self) -> None:
        """Whoever has not been told yet may go on without the new handlers, as if these had come a little later. If
        this engine ends before, the next one that looks into the book does it."""
        try:
            while self._book.untold:
                try:
                    await self._invite()
                except EngineStopped:
                    return
                except PerdureError as error:
                    log.warning("not all who wait know of new handlers yet, which is tried again: %s", error)
                    await pause(self._clock, _INVITE_AGAIN_S)
        finally:
            self._is_inviting = False

    def _expect(self, began: Iterable[LiveOperation]) -> None:
        self.operations.expect(began)

    async def shutdown(self, grace: Duration | None = None) -> None:
        """Start nothing new, let running steps end within the grace period, commit, release all runs. Idempotent.

        If it is cancelled, the engine ends at once, as one that was killed does, and others recover its runs."""
        if self._state == "open":
            self._state = "stopping"
            with self._letting_go():
                await self._cancel_tasks()
                grace = self._grace_s if grace is None else grace
                grace_s = span_of(grace, "grace").total_seconds()
                await asyncio.gather(self._functions.drain(grace_s), self.operations.drain(grace_s))
                await self._sign_off()
        elif self._state == "broken":
            await super().shutdown()
        else:
            return
        await self._resources.release()
        self._state = "stopped"
        self._ended.set()

    async def _empty(self) -> None:
        self._timers.close()
        await in_turns(self._functions.closing())
        await self._functions.closings.ended()
        await in_turns(self.operations.closing())

    def _let_go(self, error: BaseException) -> None:
        self._timers.close()
        self._recovery.close()
        self._functions.close()
        self.operations.close()
        if self._block_watch is not None:
            self._block_watch.end()
        super()._let_go(error)

    def _called(self, call: RunCall[Any]) -> Workflow[Any, Any]:
        workflow = self._workflows.of(call)
        if workflow.model == "graph" and (workflow.name, workflow.version) not in self._kept:
            self._background(self._keep_definitions([workflow]))
        return workflow

    async def _keep_definitions(self, workflows: Iterable[Workflow[Any, Any]]) -> None:
        """Keep the definitions of graphs, for runs that outlive the code. One that is there is not written again. A run
        whose definition is missing is told of by the code, so a failure of the store is not this engine's end."""
        for workflow in workflows:
            if workflow.model == "graph" and (workflow.name, workflow.version) not in self._kept:
                graph: Any = workflow
                self._kept.add((workflow.name, workflow.version))
                try:
                    await self.put_record("graph", graph.digest, graph.kept(), actor=_KEEPER)
                except StoreError as error:
                    self._kept.discard((workflow.name, workflow.version))
                    log.warning("the definition of %r is not kept, so its runs need its code: %s", workflow, error)

    def _lost_track(self) -> None:
        self._background(self._recover_again())

    @property
    def quiet(self) -> bool:
        """Nothing is queued, committed, loaded or running: only time or a caller can make something happen."""
        return self.is_between_steps and not self.steps_running

    @property
    def is_between_steps(self) -> bool:
        """Nothing is queued, committed or loaded: only a running step, time or a caller can make something happen."""
        is_busy = self._functions.busy or self.operations.busy or self._sweeper.busy or self._waker.reading
        return self._coordinator.idle and not is_busy

    @property
    def steps_running(self) -> int:
        """How many steps' bodies run now."""
        return self._functions.steps_running + self.operations.steps_running

    # Recovery.

    async def recover(self) -> RecoveryReport:
        """Go on with every run that no live engine has and whose workflow this one has. Done at start and regularly."""
        while True:
            self._check_open(to_start=True)
            try:
                report = await self._patience.ask(self._recovery.run, may_be_cut=False)
                await self._read_mail()
                if report.engines_buried or not self._has_examined:
                    self._has_examined = True
                    self.operations.examine_left()
                return report
            except Fenced:
                await self._coordinator.prove()  # Then it is registered anew.

    async def _purge_regularly(self) -> None:
        """Forget what has expired, and look for runs whose code nobody has."""
        outage, strandings = Outage("purge"), Strandings()
        while True:
            await pause(self._clock, _PURGE_EVERY_S)
            try:
                await self.purge()
                active = await self.runs(status=sorted(ACTIVE), limit=1000)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next time may go well
                outage.failed("forgetting expired events failed and is tried again", error)
            else:
                outage.worked()
                strandings.found(active.runs)

    async def _recover_again(self) -> None:
        try:
            await self.recover()
        except (StoreError, EngineStopped) as error:
            log.warning("looking for runs to go on with failed and is tried again: %s", error)

    # Effects.

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            try:
                match effect:
                    case Proceed():  # By far the most of them.
                        self._functions.proceed(effect.run_id)
                    case Begin():
                        self._begin(effect)
                    case Finish():
                        self._finish(effect)
                    case _:
                        self._perform_one(effect)
            except Exception:
                log.exception("an effect could not be performed: %r", effect)

    def _begin(self, effect: Begin) -> None:
        if effect.run.deadline is not None:
            self._arm_deadline(effect.run)
        (self.operations if effect.run.model == "operation" else self._functions).perform(effect)

    def _finish(self, effect: Finish) -> None:
        run = effect.run
        (self.operations if run.model == "operation" else self._functions).perform(effect)
        if self._deadlines and (timer := self._deadlines.pop(run.id, None)) is not None:
            timer.cancel()
        self._tell_waiting(run.id, (run, effect.outcome))

    def _perform_one(self, effect: Deliver | Drop | Rearm | Examine | Published | Look) -> None:
        if isinstance(effect, Deliver):
            self._functions.perform(effect)
        elif isinstance(effect, (Look, Examine)):
            self.operations.perform(effect)
        elif isinstance(effect, Published):
            self._wake_readers(effect.run_id)
        elif isinstance(effect, Rearm):
            self._arm_deadline(effect.run)
        else:
            self._functions.perform(effect)
            self.operations.perform(effect)
            if (timer := self._deadlines.pop(effect.run_id, None)) is not None:
                timer.cancel()
                self._sweeper.left(effect.run_id, timer.due_at, deadline=True)
            self._tell_waiting(effect.run_id, None)

    def _arm_deadline(self, run: Run) -> None:
        if (timer := self._deadlines.pop(run.id, None)) is not None:
            timer.cancel()
        if run.deadline is not None and run.status not in FINISHED:
            self._deadlines[run.id] = self._timers.arm(run.deadline, partial(self._expire, run.id, run.deadline))

    def _wake(self, run_id: str, answered: Answered) -> None:
        self._waker.wake(run_id, answered)

    def _expire(self, run_id: str, due_at: int, answered: Answered | None = None) -> None:
        self._deadlines.pop(run_id, None)
        failure = to_failure(DeadlineExceeded(f"run {run_id!r} did not end by its deadline"))
        at = max(self._clock.now(), due_at)
        expire = ops.Expire(run_id=run_id, at=at, failure=msgspec.json.encode(failure).decode())
        self._coordinator.owe(expire, answered)

    def _room(self) -> int:
        """How many timers may fire now. Each becomes an op, and more than the next batches take would only wait."""
        reading = self._functions.reading + self._waker.reading
        return _DUE_AT_ONCE_MAX - self._coordinator.queued_due - reading
