"""The engine's API without the engine: start runs, send, ask and follow, from a process that has no workflow code.

A client registers with the store as an engine does, and owns nothing. What it asks for is decided here if no engine has
the run, and by the engine that has it otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import msgspec

from perdure.arguments import Duration, checked, span_of
from perdure.controlling import Controlling
from perdure.coordinator.coordinator import Coordinator
from perdure.coordinator.deciding import Deaf, Hearing
from perdure.coordinator.notices import Stats
from perdure.coordinator.patience import Limits, Patience, patient, reporting
from perdure.coordinator.post import PostOffice
from perdure.coordinator.watch import Watch
from perdure.credentials import Credentials
from perdure.diagnosing import Diagnosing
from perdure.emitting import Emitting
from perdure.errors import EngineStopped, Misuse, RunNotFound, StoreError, StoreMisconfigured
from perdure.graph_runs import GraphRuns
from perdure.handles import RunHandle
from perdure.inspecting import Inspecting
from perdure.keeping import Keeping
from perdure.kernel.effects import Drop, Effect, Finish
from perdure.kernel.records import Engine as EngineRow
from perdure.kernel.records import Outcome, Run
from perdure.kernel.status import FINISHED, Status
from perdure.log_text import tame_logs
from perdure.models.cooperation.book import Book
from perdure.models.cooperation.drafting import Drafting
from perdure.models.cooperation.rows import RowCodec
from perdure.models.cooperation.versions import Operations
from perdure.models.functions.checks import checked_text, checked_time
from perdure.models.functions.values import PAYLOAD_MAX_BYTES, Reader
from perdure.models.transacting import holds_writer
from perdure.obstacles import Obstacles
from perdure.ports import Clock, Codec, Ids, PlainCodec, Probe, Store, SystemClock, new_id
from perdure.reading import Reading
from perdure.registry import Registry
from perdure.sending import PENDING_MAX, RETENTION, Sending
from perdure.starting import Starting
from perdure.storage import open_store
from perdure.tasking import Tasking
from perdure.trail import AuditLine, audit_lines
from perdure.views import run_view

log = logging.getLogger("perdure")
tame_logs()

_ASK_AGAIN_S, _ASK_AGAIN_MAX_S = 0.01, 0.25


@checked
class Client(Emitting, Starting, Inspecting, GraphRuns, Diagnosing, Sending, Reading, Controlling, Keeping, Tasking):
    """Talks to the engines that share a store. Use it as an async context manager; one per process will do.

    `store` is a URL ("sqlite:///shop.db", "postgresql://…") or a Store; `codec` must be the engines'.
    """

    _kind = "client"

    def __init__(
        self,
        store: str | Store,
        *,
        clock: Clock | None = None,
        codec: Codec | None = None,
        ids: Ids = new_id,
        limits: Limits | None = None,
        payload_bytes_max: int = PAYLOAD_MAX_BYTES,
        event_retention: Duration = RETENTION,
        events_pending_max: int = PENDING_MAX,
        poll_s: float | msgspec.UnsetType | None = msgspec.UNSET,
        probe: Probe | None = None,
    ) -> None:
        self._url = store if isinstance(store, str) else None
        self._store = open_store(store) if isinstance(store, str) else store
        self._workflows = Registry([])
        self._clock = clock or self._store.clock or SystemClock()
        self._codec = codec or PlainCodec()
        self._ids = ids
        self._limits = limits or Limits()
        self._payload_bytes_max = payload_bytes_max
        self._event_retention = span_of(event_retention, "event_retention")
        self._events_pending_max = events_pending_max
        self._poll_s = self._store.poll_s if poll_s is msgspec.UNSET else poll_s
        self._probe = probe
        self._waiters: dict[str, list[asyncio.Future[tuple[Run, Outcome] | None]]] = {}
        self._readers: dict[str, set[asyncio.Event]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._state = "new"
        self._stopped_by: BaseException | None = None
        self.sign_off_failure: StoreError | None = None  # why the store did not take that it was shut down
        self._ended = asyncio.Event()  # It has stopped, by itself or because it was told to.
        self._coordinator: Coordinator
        self._post: PostOffice
        self._patience: Patience
        self._own_store: Store  # for the engine's own parts, which give up if it is unfit
        self._patient_store: Store  # for callers, who wait for `patience_s` at most

    @property
    def credentials(self) -> Credentials:
        """Tokens of the HTTP API and sessions of the dashboard."""
        self._check_open()
        return Credentials(self._patient_store, self._store, self._codec, self._clock)

    def export_audit(self, *, since: datetime | None = None, until: datetime | None = None) -> AsyncIterator[AuditLine]:
        """Every change of a run, a record or a token from a time on and before another, with who asked for it, in a
        stable order: `async for line in client.export_audit()`. It is read in pages, so it needs little memory however
        much there is. The last line is an End: an export without one is not whole. Raises InvalidArguments."""
        first, last = checked_time(since, "since"), checked_time(until, "until")
        return audit_lines(self._patient_store, self.credentials, first, last)

    # Life.

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def open(self) -> None:
        """Open the store and register. Raises StoreError; it may be tried again if the store was given by its URL."""
        self._assemble()
        try:
            await self._store.open()
            await self._coordinator.start()
        except BaseException:
            await self._close_store()
            raise
        self._state = "open"
        self._watch(self.mark_dead_engines)

    def _assemble(self) -> None:
        if self._state != "new":
            raise Misuse(f"this {self._kind} was opened before; make a new one")
        self._workflows.load()
        self._own_store = reporting(self._store, self._start_over)
        self._post = PostOffice(self._own_store, self._find_members)
        self._coordinator = Coordinator(
            self._store,
            limits=self._limits,
            enroll=self._enroll,
            perform=self._perform,
            lost_track=self._lost_track,
            broken=self._broke,
            now=self._clock.now,
            workflows=self._workflows.code,
            posted=self._post.expect,
            hearing=self._hearing,
            probe=self._probe,
        )

        self._coordinator.callers.looked = lambda: self._post.give_up(self._coordinator.callers.overdue)
        self._patience = Patience(self._limits, self._coordinator.stats.outages, self._check_unbroken)
        self._patient_store = patient(self._store, self._patience)
        self._book = Book(self._patient_store, self._ids)
        self._drafting = Drafting(
            operations=Operations(),
            book=self._book,
            rows=RowCodec(self._codec),
            codec=self._codec,
            ids=self._ids,
            now=self._clock.now,
        )

    @property
    def _hearing(self) -> Hearing:
        """What runs of operations know that are here: a client has none."""
        return Deaf()

    async def _close_store(self) -> None:
        """After opening failed."""
        await self._store.close()
        if self._url is not None:
            was, self._store = self._store, open_store(self._url)  # A store is opened once.
            if was.clock is not None and self._clock is was.clock:
                self._clock = self._store.clock or self._clock

    def _watch(
        self, recover: Callable[[], Coroutine[Any, Any, object]], is_behind: Callable[[], bool] = lambda: False
    ) -> None:
        """From now on, notice what others do."""
        if self._poll_s is not None:
            watch = Watch(
                self._own_store,
                self._coordinator,
                self._post,
                self._clock,
                offers=self._workflows.offers,
                recover=recover,
                is_behind=is_behind,
                poll_s=self._poll_s,
            )
            self._background(watch.run())

    async def mark_dead_engines(self) -> int:
        """Mark engines without a sign of life as dead; how many. Engines and clients do that regularly by themselves.
        Raises StoreError."""
        self._check_open()
        return len(await self._patient_store.bury())

    async def until_stopped(self) -> None:
        """Wait until it has stopped. Returns if it was shut down; raises EngineStopped if it stopped by itself, since
        its store is broken: then a process that lives for it should end, or open another one."""
        await self._ended.wait()
        if self._stopped_by is not None:
            raise self._stopped_by

    async def shutdown(self) -> None:
        """Finish what was asked for, and let go of the store. Idempotent. If it is cancelled, it lets go at once."""
        if self._state == "broken":
            self._state = "stopped"
            await self._cancel_tasks()
        if self._state == "open":
            self._state = "stopping"
            with self._letting_go():
                await self._cancel_tasks()
                await self._sign_off()
            self._state = "stopped"
            self._ended.set()

    @contextmanager
    def _letting_go(self) -> Generator[None]:
        """Whatever cuts a shutdown short, nothing of it looks alive afterwards: others recover what it had."""
        try:
            yield
        except BaseException:
            self.kill()
            raise

    async def _sign_off(self) -> None:
        try:
            await asyncio.wait_for(self._coordinator.stop(), self._limits.patience_s)
        except TimeoutError:
            log.warning("the store took nothing for %s s; what is not written is done again", self._limits.patience_s)
            self._coordinator.kill()
        await self._empty()
        self._let_go(EngineStopped(f"the {self._kind} was shut down; the run goes on when an engine has it again"))
        if self._coordinator.is_cut_off:
            # An exception has left the loop, and all tasks were cancelled: that is no graceful end. Runs that were
            # executing are left as a crash leaves them, so that one that ends its process at every start is noticed.
            log.warning("the %s was cut off before it could sign off; its runs are recovered", self._kind)
            self._store.abandon()
            return
        try:
            await self._store.retire(self._coordinator.engine.id)
        except StoreError as error:
            self.sign_off_failure = error
            log.warning("the %s could not sign off (%s); others will notice that it is gone", self._kind, error)
        await self._store.close()

    async def _empty(self) -> None:
        """Let go of what is in memory, which may be much: of a client nothing is."""

    def kill(self) -> None:
        """Stop as a killed process would, at once: nothing is committed, released or tidied up. For tests."""
        self._state = "stopped"
        self._ended.set()
        for task in self._tasks:
            task.cancel()
        self._coordinator.kill()
        self._store.abandon()
        self._let_go(EngineStopped(f"the {self._kind} was killed"))

    async def _enroll(self) -> EngineRow:
        return await self._store.enroll(
            engine_id=self._ids(self._clock.now()),
            host=socket.gethostname(),
            pid=os.getpid(),
            workflows=self._workflows.names(),
            at=self._clock.now(),
        )

    def _start_over(self, error: StoreMisconfigured) -> None:
        self._coordinator.start_over(error)

    def _lost_track(self) -> None:
        """There may be runs to go on with that only the store knows of: not for a client."""

    def _broke(self, error: BaseException) -> None:
        """The store is lost for good: nothing can go on in this process. Whoever waits is told, and the sign of life
        ends, so that others take the runs."""
        self._state = "broken"
        self._stopped_by = error
        for task in self._tasks:
            task.cancel()
        self._let_go(error)
        self._store.abandon()
        self._ended.set()

    def _let_go(self, error: BaseException) -> None:
        """Tell everybody who waits for something that it will not come."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # Whoever waits gets it; nobody else need hear of it.
        self._waiters.clear()
        for run_id in list(self._readers):
            self._wake_readers(run_id)
        self._post.close(error)

    def _background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended_in_background)

    def _ended_in_background(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the %s failed: %r", self._kind, error, exc_info=error)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_open(self, *, to_start: bool = False) -> None:
        """Raise EngineStopped unless it is there to answer. One that is stopping does, but starts nothing.

        Raises Misuse where it could not answer: in a step that holds the writer until it ends."""
        if step := holds_writer.get()():
            raise Misuse(
                f"the {self._kind} cannot be asked for anything in the transactional step {step!r}: nothing else is "
                "written before it ends. Do it in another step"
            )
        if self._state == "open" or (self._state == "stopping" and not to_start):
            return
        self._check_unbroken()
        kind = self._kind
        if self._state == "new":
            raise EngineStopped(
                f"this {kind} was not opened yet: use it inside `async with {kind.title()}(…) as {kind}:`"
            )
        raise EngineStopped(f"this {kind} was shut down; open a new one on the same store")

    def _check_unbroken(self) -> None:
        """Raise EngineStopped if it has stopped by itself."""
        if self._stopped_by is not None:
            raise EngineStopped(f"this {self._kind} has stopped: {self._stopped_by}") from self._stopped_by

    @property
    def stats(self) -> Stats:
        """What the coordinator in here has done so far."""
        return self._coordinator.stats

    # Waiting.

    def handle(self, id: str) -> RunHandle[Any]:
        """A handle of a run known by its id. Asks nobody whether it exists."""
        return self._handle(id, None)

    def _handle(self, id: str, reader: Reader | None, *, in_transaction: bool = False) -> RunHandle[Any]:
        return RunHandle(self, id, reader, in_transaction=in_transaction)

    def read_result(self, run: Run, output: str, reader: Reader | None) -> Any:
        """What a run returned, typed by its workflow if this one has it."""
        reader = reader or self._result_reader(run)
        return reader.read(self._codec.decode(output), f"the result of run {run.id!r}")

    def _result_reader(self, run: Run) -> Reader:
        known = self._workflows.get((run.workflow, run.workflow_version))
        return known.signature.result if known is not None else Reader(Any, "a result")

    async def outcome(self, run_id: str) -> tuple[Run, Outcome]:
        """Wait until a run has ended; its last state and what it left. Raises RunNotFound, EngineStopped, and
        StoreUnavailable if the store has been away for long. Logs once if the run is held, or nobody has its code."""
        pause_s = _ASK_AGAIN_S
        obstacles: Obstacles | None = None
        while True:
            self._check_open()
            if self._coordinator.loaded(run_id) is not None:
                if (ended := await self._notice(run_id)) is not None:
                    return ended
                continue  # This engine has it no more.
            checked_text(run_id, "a run's id")
            stored = (await self._patient_store.get([run_id])).get(run_id)
            if stored is None:
                raise RunNotFound(run_id)
            if stored.run.status in FINISHED:
                return stored.run, stored.outcome
            if self._state != "open":
                self._check_unbroken()
                raise EngineStopped("the engine is stopping; the run goes on when an engine has it again")
            if self._coordinator.loaded(run_id) is None:
                obstacles = obstacles or Obstacles(self._stranded)
                await obstacles.look(stored.run)
                # Another engine has it, or none: that one's time is the real one.
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _ASK_AGAIN_MAX_S)

    async def _stranded(self, run: Run) -> str | None:
        """Why nobody can go on with a run; None if somebody can. A message that nobody has begun to handle may be for a
        person."""
        if run.model == "operation" and run.status is Status.CREATED:
            return None
        return (await self._with_stranded([run_view(run)]))[0].stranded

    async def _notice(self, run_id: str) -> tuple[Run, Outcome] | None:
        """Wait for the end of a run of this engine's; None if the engine lost it before."""
        waiter: asyncio.Future[tuple[Run, Outcome] | None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(run_id, [])
        waiters.append(waiter)
        try:
            return await waiter
        finally:
            waiters.remove(waiter)

    # Effects.

    def _perform(self, effects: Iterable[Effect]) -> None:
        """Of what was decided here about runs that nobody has, only their ends are of interest."""
        for effect in effects:
            if isinstance(effect, Finish):
                self._tell_waiting(effect.run.id, (effect.run, effect.outcome))
            elif isinstance(effect, Drop):
                self._tell_waiting(effect.run_id, None)

    def _tell_waiting(self, run_id: str, ended: tuple[Run, Outcome] | None) -> None:
        self._wake_readers(run_id)
        for waiter in self._waiters.pop(run_id, ()):
            if not waiter.done():
                waiter.set_result(ended)
