"""The runtime turns a session into an engine. It has the models, the timers and the recovery, and it carries out the
effects of commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from perdure.api.deadlocks import StandstillWatch
from perdure.api.events import Events
from perdure.api.function_emissions import FunctionEmissions
from perdure.api.obstacles import Strandings
from perdure.api.records import put_record
from perdure.api.runs import Runs
from perdure.api.stranded_runs import warn_of_missing_code
from perdure.api.topics import announce_handlers
from perdure.coordinator.due_runs import Waker
from perdure.coordinator.notices import Outage
from perdure.coordinator.recovery import Recovery, RecoveryReport
from perdure.coordinator.sweep import Answered, Sweeper
from perdure.coordinator.timers import Timer, Timers, pause
from perdure.coordinator.turns import in_turns
from perdure.errors import DeadlineExceeded, EngineStopped, Fenced, PerdureError, StoreError, UnstorableValue
from perdure.kernel import ops
from perdure.kernel.effects import Begin, Deliver, Drop, Effect, Examine, Finish, Notified, Proceed, Published, Rearm
from perdure.kernel.runs import Run
from perdure.kernel.status import ACTIVE, FINISHED
from perdure.models.bridges.function_emissions import EmissionAccess
from perdure.models.common.deployment import DEPLOYMENT
from perdure.models.common.host_parts import HostParts
from perdure.models.common.resources import Resources
from perdure.models.cooperation.host import OperationHost
from perdure.models.cooperation.live_run import LiveOperation
from perdure.models.cooperation.nesting_depth import Levels
from perdure.models.functions.block_watch import BlockWatch
from perdure.models.functions.catalogue import Catalogue
from perdure.models.functions.compensation import is_waiting
from perdure.models.functions.context import OperationAttempts
from perdure.models.functions.define import RunCall, Workflow
from perdure.models.functions.host import FunctionHost
from perdure.models.functions.records import Records as StepRecords
from perdure.ports import LoadedRun
from perdure.session import Session
from perdure.values.failures import to_failure
from perdure.values.json import PAYLOAD_MAX_BYTES

log = logging.getLogger("perdure")

_PURGE_EVERY_S: Final = 60.0
_ANNOUNCE_AGAIN_S: Final = 1.0
# ops that are queued or being read; enough for two batches, so that the next batch is full
_DUE_AT_ONCE_MAX: Final = 384
_KEEPER: Final = "engine"  # the actor in the audit of stored definitions


class Runtime:
    """The listener of an engine's session. It continues runs, fires timers, and recovers the runs of dead engines."""

    def __init__(self, session: Session, resources: Mapping[type[Any], Callable[[], Any]]) -> None:
        self._session = session
        own = {
            Catalogue: Catalogue(lambda: session.store, session.workflows),
            EmissionAccess: EmissionAccess(FunctionEmissions(session, lambda: self._levels)),
            StepRecords: StepRecords(lambda: session.store, session.codec),
        }
        self.resources = Resources(resources, own)
        self._deadlines: dict[str, Timer] = {}
        self._is_announcing = False
        self._kept: set[tuple[str, str]] = set()  # graphs whose definitions are in the store
        self._block_watch: BlockWatch | None = None
        self._has_examined = False  # whether the holds that dead engines left on runs of operations were examined
        self._levels: Levels
        self._recovery: Recovery
        self._sweeper: Sweeper
        self._waker: Waker
        self._timers: Timers
        self.functions: FunctionHost
        self.operations: OperationHost

    # Opening and ending.

    async def open(self) -> None:
        """Open the store, register, acquire resources, and recover runs. Raises StoreError, DuplicateWorkflow, and the
        errors of the resources' factories."""
        session = self._session
        session.assemble(self)
        self._assemble()
        try:
            await session.store.open()
            await self.resources.acquire()
            await session.coordinator.start()
            if operations := session.workflows.operations:
                await session.handlers.register([*operations], session.clock.now())
        except BaseException as error:
            session.coordinator.kill()
            self.functions.close()
            self.operations.close()
            await self.resources.release()
            await session.close_store()
            if isinstance(error, EngineStopped) and isinstance(error.__cause__, StoreError):
                raise error.__cause__ from None  # The cause says why the engine stopped before it was open.
            raise
        session.opened()
        try:
            await self._keep_definitions(session.workflows.values())
            await self.recover()
            await warn_of_missing_code(session)
        except BaseException:
            await self.shutdown(0)
            raise
        self._announce_soon()
        session.watch(self._recover_others, lambda: self._recovery.is_behind)
        if session.poll_s is not None:
            session.background(self._purge_regularly())
            outages = session.coordinator.stats.outages
            standstills = StandstillWatch(session.engine_store, session.clock, self.functions.awaiting, outages)
            session.background(standstills.run())
            self._block_watch = BlockWatch(session.limits.blocked_warn_s)

    def _assemble(self) -> None:
        session, limits = self._session, self._session.limits
        coordinator = session.coordinator
        self._timers = Timers(session.clock, self._room, coordinator.firing)
        coordinator.taken = self._timers.go_on
        self._sweeper = Sweeper(
            session.engine_store,
            session.clock,
            self._timers,
            coordinator=coordinator,
            code=session.workflows,
            tasks=session,
            listener=self,
        )
        self._recovery = Recovery(
            session.engine_store,
            coordinator,
            self._sweeper,
            session.clock,
            recoveries_max=limits.recoveries_max,
            code=session.workflows,
            tasks=session,
            listener=self,
        )
        parts = HostParts(
            store=session.engine_store,
            clock=session.clock,
            codec=session.codec,
            ids=session.ids,
            timers=self._timers,
            coordinator=coordinator,
            departures=self._sweeper,
            limits=limits,
        )
        self.functions = FunctionHost(parts, workflows=session.workflows, resources=self.resources)
        self.operations = OperationHost(
            parts,
            operations=session.workflows.operations,
            registry=session.handlers,
            threads=self.functions.threads,
            attempts=OperationAttempts(self.resources),
            mail=session,
        )
        session.operation_runner = self.operations.runner
        self._levels = Levels(session.caller_store, session.codec, coordinator.loaded, limits.hierarchy_levels_max)
        self._waker = Waker(
            session.engine_store,
            coordinator,
            session.clock,
            self._timers,
            preparer=self.functions,
            tasks=session,
        )

    async def shutdown(self, grace_s: float) -> None:
        """Start nothing new, let running steps end within the grace period, commit, and release all runs.

        Idempotent.
        """
        session = self._session
        if session.state == "open":
            with session.stopping():
                await session.cancel_tasks()
                await asyncio.gather(self.functions.drain(grace_s), self.operations.drain(grace_s))
                await session.sign_off()
        elif session.state == "broken":
            await session.cancel_tasks()
        else:
            return
        await self.resources.release()
        session.stopped()

    async def release(self) -> None:
        """Drop all runs from memory. Each turn of the event loop drops a bounded number of runs."""
        self._timers.close()
        await in_turns(self.functions.closing())
        await self.functions.closings.ended()
        await in_turns(self.operations.closing())

    def let_go(self, error: BaseException) -> None:
        """End everything that does not need the store, because the session has ended."""
        del error
        self._timers.close()
        self._recovery.close()
        self.functions.close()
        self.operations.close()
        if self._block_watch is not None:
            self._block_watch.end()

    # The engine's activity, which tests wait for.

    @property
    def is_between_steps(self) -> bool:
        """Whether nothing is queued, being committed or being loaded. Then only a running step, the clock or a caller
        can cause further work.
        """
        is_busy = self.functions.busy or self.operations.busy or self._sweeper.busy or self._waker.reading
        return self._session.coordinator.idle and not is_busy

    @property
    def steps_running(self) -> int:
        """How many steps run now."""
        return self.functions.steps_running + self.operations.steps_running

    # Recovery.

    async def recover(self) -> RecoveryReport:
        """Continue every run that no live engine owns and whose workflow this engine has."""
        session = self._session
        while True:
            session.check_open(to_start=True)
            try:
                report = await session.patience.ask(self._recovery.run, may_be_cut=False)
                await session.read_mail()
                if report.engines_marked_dead or not self._has_examined:
                    self._has_examined = True
                    self.operations.examine_left()
                return report
            except Fenced:
                # `check_fence` registers the engine again if it was marked dead.
                await session.coordinator.check_fence()

    async def _recover_others(self) -> None:
        report = await self._recovery.run()
        if self._session.workflows.operations:
            if report.engines_marked_dead:
                await warn_of_missing_code(self._session)
            # A dead engine may have registered handlers without announcing them.
            await self._session.handlers.load(again=True)
            self._announce_soon()

    def lost_track(self) -> None:
        """Look in the store for runs to continue that are not in memory."""
        self._session.background(self._recover_again())

    async def _recover_again(self) -> None:
        try:
            await self.recover()
        except (StoreError, EngineStopped) as error:
            log.warning("looking for runs to go on with failed and is tried again: %s", error)

    async def waiting(self, loaded: Sequence[LoadedRun]) -> set[str]:
        """Return the ids of the runs that execute nothing now. All the given runs are rolling back."""
        operations = [one.run for one in loaded if one.run.model == "operation"]
        others = [one for one in loaded if one.run.model != "operation"]
        now = self._session.clock.now()
        return {
            *(one.run.id for one in others if is_waiting(one.waits, now)),
            *(one.run.id for one in loaded if any(w.kind == "retry" and (w.due_at or 0) > now for w in one.waits)),
            *(await self.operations.waiting(operations) if operations else ()),
        }

    async def _purge_regularly(self) -> None:
        """Regularly remove expired rows, and log runs whose code no live engine has."""
        session = self._session
        events, runs = Events(session), Runs(session)
        outage, strandings = Outage("purge", session.coordinator.stats.outages), Strandings()
        while True:
            await pause(session.clock, _PURGE_EVERY_S)
            try:
                await events.purge()
                active = await runs.list(status=sorted(ACTIVE), limit=1000)
            except Exception as error:  # noqa: BLE001 - whatever the error is, the next purge may succeed
                outage.failed("forgetting expired events failed and is tried again", error)
            else:
                outage.worked()
                strandings.found(active.runs)

    # Handlers and definitions.

    def _announce_soon(self) -> None:
        if self._session.handlers.unannounced and not self._is_announcing:
            self._is_announcing = True
            self._session.background(self._announce_all())

    async def _announce_all(self) -> None:
        """Notify waiting emitters of new handlers. Until an emitter is notified, it may go on without the new handlers,
        as if they had been registered a little later. If this engine ends before it has notified all emitters, the next
        engine that reads the registry notifies them.
        """
        try:
            while self._session.handlers.unannounced:
                try:
                    await announce_handlers(self._session)
                except EngineStopped:
                    return
                except PerdureError as error:
                    log.warning("notifying waiting emitters of new handlers failed and is tried again: %s", error)
                    await pause(self._session.clock, _ANNOUNCE_AGAIN_S)
        finally:
            self._is_announcing = False

    def expect(self, began: Iterable[LiveOperation]) -> None:
        """Note that these runs of operations are about to be committed and will begin on this engine."""
        self.operations.expect(began)

    def workflow_of(self, call: RunCall[Any]) -> Workflow[Any, Any]:
        """Return the workflow of a call that a caller wants to start. If the workflow is a graph, store its definition
        in the background. Raises Misuse, UnknownWorkflow, DuplicateWorkflow.
        """
        workflow = self._session.workflows.of(call)
        if workflow.model == "graph" and (workflow.name, workflow.version) not in self._kept:
            self._session.background(self._keep_definitions([workflow]))
        return workflow

    async def _keep_definitions(self, workflows: Iterable[Workflow[Any, Any]]) -> None:
        """Store the definitions of graphs, for runs that outlive their code. A definition that is stored already is not
        written again.

        If a definition cannot be stored, because the store fails or the definition is too large, that is logged and
        does not end this engine: its runs are shown with the definition in the code. The limit for values binds a
        definition only if it is above the default limit."""
        bytes_max = max(self._session.limits.payload_bytes_max, PAYLOAD_MAX_BYTES)
        for workflow in workflows:
            if workflow.model == "graph" and (workflow.name, workflow.version) not in self._kept:
                graph: Any = workflow
                self._kept.add((workflow.name, workflow.version))
                what = f"the definition of {workflow!r}"
                try:
                    await put_record(
                        self._session,
                        "graph",
                        graph.digest,
                        graph.kept(),
                        _KEEPER,
                        what=what,
                        bytes_max=bytes_max,
                    )
                except StoreError as error:
                    self._kept.discard((workflow.name, workflow.version))
                    log.warning("%s is not kept, so its runs need its code: %s", what, error)
                except UnstorableValue as error:
                    log.warning("%s is not kept, so its runs need its code: %s", what, error)

    # Effects.

    def perform(self, effects: Iterable[Effect]) -> None:
        """Carry out the effects of a commit. An effect that fails is logged, and does not stop the others."""
        for effect in effects:
            try:
                match effect:
                    case Proceed():  # By far the most frequent effect.
                        self.functions.proceed(effect.run_id)
                    case Begin():
                        self._begin(effect)
                    case Finish():
                        self._finish(effect)
                    case _:
                        self._perform_one(effect)
            except Exception:
                log.exception("an effect could not be performed: %r", effect)

    def performed(self) -> None:
        """Let runs of operations go on after their rows are committed. At this point, these runs have received all
        notices of that commit.
        """
        self.operations.proceed()

    def _begin(self, effect: Begin) -> None:
        if effect.run.deadline is not None:
            self.arm_deadline(effect.run)
        (self.operations if effect.run.model == "operation" else self.functions).perform(effect)

    def _finish(self, effect: Finish) -> None:
        run = effect.run
        (self.operations if run.model == "operation" else self.functions).perform(effect)
        if self._deadlines and (timer := self._deadlines.pop(run.id, None)) is not None:
            timer.cancel()
        self._session.followers.ended(run.id, (run, effect.outcome))

    def _perform_one(self, effect: Deliver | Drop | Rearm | Examine | Published | Notified) -> None:
        if isinstance(effect, Deliver):
            self.functions.perform(effect)
        elif isinstance(effect, (Notified, Examine)):
            self.operations.perform(effect)
        elif isinstance(effect, Published):
            self._session.followers.published(effect.run_id)
        elif isinstance(effect, Rearm):
            self.arm_deadline(effect.run)
        else:
            self.functions.perform(effect)
            self.operations.perform(effect)
            if (timer := self._deadlines.pop(effect.run_id, None)) is not None:
                timer.cancel()
                self._sweeper.left(effect.run_id, timer.due_at, deadline=True)
            self._session.followers.ended(effect.run_id, None)

    # Time.

    def fingerprint(self) -> None:
        """Compute the digest of the deployed code. From now on, the code that this engine offers has a fingerprint."""
        DEPLOYMENT.digest()

    def arm_deadline(self, run: Run) -> None:
        """If a run has a deadline, set a timer for it."""
        if (timer := self._deadlines.pop(run.id, None)) is not None:
            timer.cancel()
        if run.deadline is not None and run.status not in FINISHED:
            self._deadlines[run.id] = self._timers.arm(run.deadline, partial(self.expire, run.id, run.deadline))

    def wake(self, run_id: str, answered: Answered) -> None:
        """Continue a run that is due and that no engine owns."""
        self._waker.wake(run_id, answered)

    def expire(self, run_id: str, due_at: int, answered: Answered | None = None) -> None:
        """End a run that has reached its deadline."""
        self._deadlines.pop(run_id, None)
        failure = to_failure(DeadlineExceeded(f"run {run_id!r} did not end by its deadline"))
        at = max(self._session.clock.now(), due_at)
        expire = ops.Expire(run_id=run_id, at=at, failure=msgspec.json.encode(failure).decode())
        self._session.coordinator.enqueue(expire, answered)

    def _room(self) -> int:
        """Return how many timers may fire now. Each timer that fires becomes an op. More ops than the next batches can
        take would only wait.
        """
        reading = self.functions.reading + self._waker.reading
        return _DUE_AT_ONCE_MAX - self._session.coordinator.queued_due - reading


__all__ = ["Runtime"]
