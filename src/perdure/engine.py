"""The engine: puts store, coordinator and models together, and is what users hold."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from perdure.coordinator.coordinator import Coordinator, Limits, Stats
from perdure.coordinator.post import PostOffice
from perdure.coordinator.recovery import Recovery, RecoveryReport
from perdure.coordinator.sweep import Sweeper
from perdure.coordinator.timers import Timer, Timers, pause
from perdure.coordinator.watch import Watch
from perdure.errors import (
    DeadlineExceeded,
    EngineStopped,
    Fenced,
    InvalidArguments,
    Misuse,
    RunNotFound,
    StoreError,
    UnknownWorkflow,
)
from perdure.handles import RunHandle
from perdure.inspecting import Inspecting
from perdure.kernel import ops
from perdure.kernel.decide import Started
from perdure.kernel.effects import Begin, Deliver, Drop, Effect, Finish, Proceed, Published, Rearm
from perdure.kernel.records import Engine as EngineRow
from perdure.kernel.records import Failure, Hold, Outcome, Run
from perdure.kernel.status import FINISHED
from perdure.models.functions.blocking import BlockWatch
from perdure.models.functions.checks import checked_remark, checked_tags, checked_text
from perdure.models.functions.context import from_datetime
from perdure.models.functions.define import RunCall, Workflow
from perdure.models.functions.failures import to_failure
from perdure.models.functions.host import FunctionHost
from perdure.models.functions.identity import check_same
from perdure.models.functions.values import PAYLOAD_MAX_BYTES, Reader
from perdure.ports import Clock, Codec, Ids, PlainCodec, Probe, Store, SystemClock, new_id
from perdure.reading import Reading
from perdure.registry import Registry, named
from perdure.resources import Resources
from perdure.sending import PENDING_MAX, RETENTION, Sending
from perdure.storage import open_store
from perdure.views import (
    RunView,
    run_view,
)

log = logging.getLogger("perdure")

R = TypeVar("R")

_ASK_AGAIN_S, _ASK_AGAIN_MAX_S = 0.01, 0.25
_PURGE_EVERY_S = 60.0
_LATEST = from_datetime(datetime.max.replace(tzinfo=UTC))


class Engine(Inspecting, Sending, Reading):
    """Runs workflows on a store. Use it as an async context manager, one per process and store.

    `store` is a URL ("sqlite:///shop.db", "memory://") or a Store. `workflows` are those it can run; by default all
    that were decorated. At most `steps_max` steps run at once, plain functions in `threads_max` threads, those with
    `process=True` in `processes_max` processes (as many as there are processors).

    Leaving the context shuts it down gracefully; killing the process at any moment loses nothing.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        workflows: Iterable[Workflow[Any, Any]] | None = None,
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
        event_retention: timedelta = RETENTION,
        events_pending_max: int = PENDING_MAX,
        poll_s: float | msgspec.UnsetType | None = msgspec.UNSET,
        blocked_warn_s: float = 1.0,
        grace_s: float = 10.0,
        probe: Probe | None = None,
    ) -> None:
        self._store = open_store(store) if isinstance(store, str) else store
        self._workflows = Registry(workflows)
        self._resources = Resources(resources or {})
        self._clock = clock or SystemClock()
        self._codec = codec or PlainCodec()
        self._ids = ids
        self._limits = limits or Limits()
        self._live_runs_max = live_runs_max
        self._callbacks_max = callbacks_max
        self._payload_bytes_max = payload_bytes_max
        self._steps_max = steps_max
        self._threads_max = threads_max
        self._processes_max = processes_max
        self._recoveries_max = recoveries_max
        self._event_retention = event_retention
        self._events_pending_max = events_pending_max
        self._poll_s = self._store.poll_s if poll_s is msgspec.UNSET else poll_s
        self._blocked_warn_s = blocked_warn_s
        self._grace_s = grace_s
        self._probe = probe
        self._waiters: dict[str, list[asyncio.Future[tuple[Run, Outcome] | None]]] = {}
        self._readers: dict[str, set[asyncio.Event]] = {}
        self._deadlines: dict[str, Timer] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._state = "new"
        self._stopped_by: BaseException | None = None
        self._coordinator: Coordinator
        self._post: PostOffice
        self._block_watch: BlockWatch | None = None
        self._recovery: Recovery
        self._functions: FunctionHost
        self._sweeper: Sweeper
        self._timers: Timers

    # Life.

    async def __aenter__(self) -> Engine:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def open(self) -> None:
        """Open the store, register, recover what is there to go on with. Raises StoreBusy if the store cannot be had
        now, StoreBroken, DuplicateWorkflow."""
        if self._state != "new":
            raise Misuse("an Engine is opened once; make a new one")
        self._workflows.load()
        self._timers = Timers(self._clock)
        self._post = PostOffice(self._store)
        self._coordinator = Coordinator(
            self._store,
            limits=self._limits,
            enroll=self._enroll,
            perform=self._perform,
            lost_track=lambda: self._background(self._recover_again()),
            broken=self._broke,
            now=self._clock.now,
            workflows=self._workflows,
            posted=self._post.expect,
            probe=self._probe,
        )
        self._sweeper = Sweeper(
            self._store,
            self._clock,
            self._timers,
            offers=self._workflows.offers,
            wake=lambda run_id: self._coordinator.owe(ops.Wake(run_id=run_id, at=self._clock.now())),
            expire=self._expire,
            background=self._background,
        )
        self._recovery = Recovery(
            self._store,
            self._coordinator,
            self._sweeper,
            self._clock,
            recoveries_max=self._recoveries_max,
            offers=self._workflows.offers,
            adopted=self._arm_deadline,
            background=self._background,
        )
        self._functions = FunctionHost(
            store=self._store,
            clock=self._clock,
            codec=self._codec,
            ids=self._ids,
            timers=self._timers,
            owe=self._coordinator.owe,
            submit=self._coordinator.submit,
            insist=self._coordinator.insist,
            prove=self._coordinator.prove,
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
        try:
            await self._store.open()
            await self._resources.acquire()
            await self._coordinator.start()
        except BaseException:
            self._functions.close()
            await self._resources.release()
            await self._store.close()
            raise
        self._state = "open"
        try:
            await self.recover()
        except BaseException:
            await self.shutdown(grace=0)
            raise
        if self._poll_s is not None:
            watch = Watch(
                self._store,
                self._coordinator,
                self._post,
                self._clock,
                offers=self._workflows.offers,
                recover=self._recovery.run,
                poll_s=self._poll_s,
            )
            self._background(watch.run())
            self._background(self._purge_regularly())
            self._block_watch = BlockWatch(self._blocked_warn_s)

    async def shutdown(self, grace: timedelta | float | None = None) -> None:
        """Start nothing new, let running steps end within the grace period, commit, release all runs. Idempotent."""
        if self._state == "broken":
            await self._abandon()
        if self._state != "open":
            return
        self._state = "stopping"
        grace_s = self._grace_s if grace is None else grace.total_seconds() if isinstance(grace, timedelta) else grace
        await self._cancel_tasks()
        await self._functions.drain(grace_s)
        try:
            await asyncio.wait_for(self._coordinator.stop(), self._limits.patience_s)
        except TimeoutError:
            log.warning("the store took nothing for %s s; what is not written is done again", self._limits.patience_s)
            self._coordinator.kill()
        self._timers.close()
        self._functions.close()
        self._end_waiting(EngineStopped("the engine was shut down; the run goes on when an engine has it again"))
        try:
            await self._store.retire(self._coordinator.engine.id)
        except StoreError as error:
            log.warning("the engine could not sign off (%s); others will notice that it is gone", error)
        await self._store.close()
        await self._resources.release()
        self._state = "stopped"

    async def _abandon(self) -> None:
        """The store is lost: all that is left to do is to let go of everything."""
        self._state = "stopped"
        await self._cancel_tasks()
        self._store.abandon()
        await self._resources.release()

    def kill(self) -> None:
        """Stop as a killed process would, at once: nothing is committed, released or tidied up. For tests."""
        self._state = "stopped"
        for task in self._tasks:
            task.cancel()
        self._coordinator.kill()
        self._store.abandon()
        self._timers.close()
        self._functions.close()
        self._end_waiting(EngineStopped("the engine was killed"))

    async def _enroll(self) -> EngineRow:
        return await self._store.enroll(
            engine_id=self._ids(self._clock.now()),
            host=socket.gethostname(),
            pid=os.getpid(),
            workflows=sorted(self._workflows),
            at=self._clock.now(),
        )

    def _broke(self, error: BaseException) -> None:
        """The store is lost for good: nothing can go on in this process."""
        self._state = "broken"
        self._stopped_by = error
        self._timers.close()
        self._functions.close()
        self._end_waiting(error)

    def _background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_open(self, *, to_start: bool = False) -> None:
        """Raise EngineStopped unless the engine is there to answer. One that is stopping does, but starts nothing."""
        if self._state == "open" or (self._state == "stopping" and not to_start):
            return
        if self._state == "new":
            raise EngineStopped("this engine was not opened yet: use it inside `async with Engine(…) as engine:`")
        error = EngineStopped(
            f"this engine has stopped: {self._stopped_by}" if self._stopped_by is not None
            else "this engine was shut down; open a new one on the same store"
        )  # fmt: skip
        error.__cause__ = self._stopped_by
        raise error

    @property
    def stats(self) -> Stats:
        """What this engine's coordinator has done so far."""
        return self._coordinator.stats

    @property
    def quiet(self) -> bool:
        """Nothing is queued, committed, loaded or running: only time or a caller can make something happen."""
        return self.is_between_steps and not self.steps_running

    @property
    def is_between_steps(self) -> bool:
        """Nothing is queued, committed or loaded: only a running step, time or a caller can make something happen."""
        return self._coordinator.idle and not self._functions.busy and not self._sweeper.busy

    @property
    def steps_running(self) -> int:
        """How many steps' bodies run now."""
        return self._functions.steps_running

    # Starting and waiting.

    async def start(
        self,
        call: RunCall[R],
        *,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | timedelta | None = None,
        actor: str = "api",
    ) -> RunHandle[R]:
        """Start a run; its handle once the run is durable.

        With an `id` this is idempotent: the same id, workflow and arguments give the same run, others raise RunExists.
        A run that has not ended by its `deadline` fails. Raises UnknownWorkflow, InvalidArguments, UnstorableValue.
        """
        self._check_open(to_start=True)
        if actor != "api":
            checked_remark("", actor)
        workflow = self._workflows.of(call)
        input = workflow.signature.write(call.args, call.kwargs, self._payload_bytes_max)
        now = self._clock.now()
        started: Started = await self._coordinator.submit(
            ops.Start(
                run_id=self._ids(now) if id is None else checked_text(id, "a run's id"),
                at=now,
                actor=actor,
                workflow=workflow.name,
                workflow_version=workflow.version,
                input=self._codec.encode(input),
                tags=checked_tags(tags),
                deadline=self._deadline(deadline, now),
                fresh=id is None,
            )
        )
        if not started.created:
            await self._check_same(started.run, workflow.name, input)
        return RunHandle(self, started.run.id, workflow.signature.result)

    async def run(
        self,
        call: RunCall[R],
        *,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | timedelta | None = None,
    ) -> R:
        """Start a run and wait for its result. As `start`, and raises what `RunHandle.result` does."""
        return await (await self.start(call, id=id, tags=tags, deadline=deadline)).result()

    def handle(self, id: str) -> RunHandle[Any]:
        """A handle of a run known by its id. Asks nobody whether it exists."""
        return RunHandle(self, id, None)

    async def _check_same(self, run: Run, workflow: str, input: str) -> None:
        stored = (await self._store.get([run.id]))[run.id]
        check_same(run, self._codec.decode(stored.input), workflow, input)

    def read_result(self, run: Run, output: str, reader: Reader | None) -> Any:
        """What a run returned, typed by its workflow if this engine has it."""
        reader = reader or self._result_reader(run)
        return reader.read(self._codec.decode(output), f"the result of run {run.id!r}")

    def _result_reader(self, run: Run) -> Reader:
        known = self._workflows.get((run.workflow, run.workflow_version))
        return known.signature.result if known is not None else Reader(Any, "a result")

    async def outcome(self, run_id: str) -> tuple[Run, Outcome]:
        """Wait until a run has ended; its last state and what it left. Raises RunNotFound, EngineStopped."""
        checked_text(run_id, "a run's id")
        pause_s = _ASK_AGAIN_S
        while True:
            self._check_open()
            if self._coordinator.loaded(run_id) is not None:
                if (ended := await self._notice(run_id)) is not None:
                    return ended
                continue  # This engine has it no more.
            stored = (await self._store.get([run_id])).get(run_id)
            if stored is None:
                raise RunNotFound(run_id)
            if stored.run.status in FINISHED:
                return stored.run, stored.outcome
            if self._state != "open":
                raise EngineStopped("the engine is stopping; the run goes on when an engine has it again")
            if self._coordinator.loaded(run_id) is None:
                # Another engine has it, or none: that one's time is the real one.
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _ASK_AGAIN_MAX_S)

    async def _notice(self, run_id: str) -> tuple[Run, Outcome] | None:
        """Wait for the end of a run of this engine's; None if the engine lost it before."""
        waiter: asyncio.Future[tuple[Run, Outcome] | None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(run_id, [])
        waiters.append(waiter)
        try:
            return await waiter
        finally:
            waiters.remove(waiter)

    def _end_waiting(self, error: BaseException) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # Whoever waits gets it; nobody else need hear of it.
        self._waiters.clear()
        for run_id in list(self._readers):
            self._wake_readers(run_id)
        self._post.close(error)
        if self._block_watch is not None:
            self._block_watch.end()

    # State.

    async def update(
        self,
        id: str,
        *,
        expected_version: int | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | timedelta | msgspec.UnsetType | None = msgspec.UNSET,
        actor: str = "api",
    ) -> RunView:
        """Replace a run's tags or deadline. Raises ConcurrentModification if it is not at `expected_version`."""
        self._check_open()
        checked_remark("", actor)
        now = self._clock.now()
        run = await self._coordinator.submit(
            ops.Update(
                run_id=checked_text(id, "a run's id"),
                at=now,
                actor=actor,
                expected_version=expected_version,
                tags=msgspec.UNSET if tags is None else checked_tags(tags),
                deadline=msgspec.UNSET if deadline is msgspec.UNSET else self._deadline(deadline, now),
            )
        )
        return run_view(run)

    async def cancel(self, id: str, *, reason: str = "", actor: str = "api") -> bool:
        """End a run as cancelled: running steps are cancelled, late results dropped, its code sees nothing.

        False if it has ended already or does not exist.
        """
        self._check_open()
        checked_text(id, "a run's id")
        checked_remark(reason, actor)
        failure = Failure(type="perdure.errors:RunCancelled", message=reason or "cancelled")
        done: bool = await self._coordinator.submit(
            ops.Cancel(
                run_id=id,
                at=self._clock.now(),
                actor=actor,
                reason=reason,
                failure=msgspec.json.encode(failure).decode(),
            )
        )
        return done

    async def retry(self, id: str, *, actor: str = "api") -> RunHandle[Any]:
        """Run a failed run again: what it did before the entry whose failure ended it stays done.

        Raises RunNotFound, RunNotRetryable, UnknownWorkflow.
        """
        self._check_open(to_start=True)
        checked_remark("", actor)
        stored = (await self._store.get([checked_text(id, "a run's id")])).get(id)
        if stored is None:
            raise RunNotFound(id)
        if (stored.run.workflow, stored.run.workflow_version) not in self._workflows:
            code = named(stored.run.workflow, stored.run.workflow_version)
            raise UnknownWorkflow(f"this engine does not have {code} to retry run {id!r} with")
        failure = stored.outcome.failure
        entry = msgspec.json.decode(failure, type=Failure).entry if failure is not None else None
        await self._coordinator.submit(
            ops.Retry(
                run_id=id,
                at=self._clock.now(),
                actor=actor,
                expected_version=stored.run.version,
                from_entry=entry,
            )
        )
        return self.handle(id)

    async def pause(self, id: str, *, reason: str = "", actor: str = "api") -> bool:
        """Set a run aside until `resume`. Its running steps are cancelled and run again then. False if it is held."""
        self._check_open()
        checked_text(id, "a run's id")
        checked_remark(reason, actor)
        hold = Hold(kind="paused", reason=reason or "paused", at=self._clock.now())
        held: bool = await self._coordinator.submit(ops.SetHold(run_id=id, at=hold.at, actor=actor, hold=hold))
        return held

    async def resume(self, id: str, *, actor: str = "api") -> bool:
        """Lift a run's hold, whatever its kind, and go on. False if it is not held."""
        self._check_open(to_start=True)
        checked_remark("", actor)
        loaded = (await self._store.load([checked_text(id, "a run's id")])).get(id)
        if loaded is None:
            raise RunNotFound(id)
        take = (loaded.run.workflow, loaded.run.workflow_version) in self._workflows
        lifted: bool = await self._coordinator.submit(
            ops.Resume(run_id=id, at=self._clock.now(), actor=actor, take=take)
        )
        return lifted

    def _deadline(self, deadline: datetime | timedelta | None, now: int) -> int | None:
        if deadline is None:
            return None
        if not isinstance(deadline, (datetime, timedelta)):
            raise InvalidArguments(f"a deadline is a datetime, or a timedelta from now, not {deadline!r}")
        if isinstance(deadline, timedelta):
            due = now + deadline // timedelta(microseconds=1)
        else:
            due = from_datetime(deadline)
        if due > _LATEST:
            raise InvalidArguments(f"the deadline {deadline!r} is beyond the year 9999; leave it out for none at all")
        return max(0, due)

    # Recovery.

    async def recover(self) -> RecoveryReport:
        """Go on with every run that no live engine has and whose workflow this one has. Done at start and regularly."""
        while True:
            self._check_open(to_start=True)
            try:
                return await self._recovery.run()
            except Fenced:
                await self._coordinator.prove()  # Then it is registered anew.

    async def _purge_regularly(self) -> None:
        while True:
            await pause(self._clock, _PURGE_EVERY_S)
            try:
                await self.purge()
            except StoreError as error:
                log.warning("forgetting expired events failed and is tried again: %s", error)

    async def _recover_again(self) -> None:
        try:
            await self.recover()
        except (StoreError, EngineStopped) as error:
            log.warning("looking for runs to go on with failed and is tried again: %s", error)

    # Effects.

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            try:
                if isinstance(effect, Proceed):  # By far the most of them.
                    self._functions.proceed(effect.run_id)
                else:
                    self._perform_one(effect)
            except Exception:
                log.exception("an effect could not be performed: %r", effect)

    def _perform_one(self, effect: Begin | Deliver | Drop | Finish | Rearm | Published) -> None:
        if isinstance(effect, Published):
            self._wake_readers(effect.run_id)
            return
        if isinstance(effect, Rearm):
            self._arm_deadline(effect.run)
            return
        if isinstance(effect, Begin) and effect.run.deadline is not None:
            self._arm_deadline(effect.run)
        self._functions.perform(effect)
        if isinstance(effect, Finish):
            if (timer := self._deadlines.pop(effect.run.id, None)) is not None:
                timer.cancel()
            self._tell_waiting(effect.run.id, (effect.run, effect.outcome))
        elif isinstance(effect, Drop):
            if (timer := self._deadlines.pop(effect.run_id, None)) is not None:
                timer.cancel()
                self._sweeper.left(effect.run_id, timer.due_at, deadline=True)
            self._tell_waiting(effect.run_id, None)

    def _tell_waiting(self, run_id: str, ended: tuple[Run, Outcome] | None) -> None:
        self._wake_readers(run_id)
        for waiter in self._waiters.pop(run_id, ()):
            if not waiter.done():
                waiter.set_result(ended)

    def _arm_deadline(self, run: Run) -> None:
        if (timer := self._deadlines.pop(run.id, None)) is not None:
            timer.cancel()
        if run.deadline is not None and run.status not in FINISHED:
            self._deadlines[run.id] = self._timers.arm(run.deadline, lambda: self._expire(run.id))

    def _expire(self, run_id: str) -> None:
        self._deadlines.pop(run_id, None)
        failure = to_failure(DeadlineExceeded(f"run {run_id!r} did not end by its deadline"))
        self._coordinator.owe(
            ops.Expire(run_id=run_id, at=self._clock.now(), failure=msgspec.json.encode(failure).decode())
        )
