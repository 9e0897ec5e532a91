"""The session that a client or an engine shares with its facets. It has the store and the coordinator, and knows
whether it is open.

The constructor takes the options. Opening a session creates its parts and registers it with the store; shutting it down
retires it. Its listener carries out the effects of commits. The listener of an engine continues runs; the listener of a
client does not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec import Struct

from perdure.coordinator.call_spans import outside_of_calls
from perdure.coordinator.caller_patience import Patience, patient, reporting
from perdure.coordinator.coordinator import Coordinator
from perdure.coordinator.followers import Followers
from perdure.coordinator.mail import MailRoom
from perdure.coordinator.watch import Watch
from perdure.errors import EngineStopped, Misuse, StoreError, StoreMisconfigured
from perdure.kernel import ops
from perdure.kernel.effects import Effect
from perdure.kernel.rows import Engine as EngineRow
from perdure.models.common.transactions import holds_writer
from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.models.cooperation.live_run import LiveOperation
from perdure.models.cooperation.row_codec import RowCodec
from perdure.models.cooperation.runner import OperationRunner
from perdure.models.cooperation.token_cancellation import TokenMembers
from perdure.models.cooperation.versions import Operations
from perdure.models.functions.define import RunCall, Workflow
from perdure.models.graphs.event_pages import EventPages
from perdure.ports import Clock, Codec, Ids, PlainCodec, Probe, Store, SystemClock, new_id
from perdure.registry import Registry
from perdure.storage import open_store
from perdure.values.arguments import span_of
from perdure.values.limits import Limits
from perdure.values.log_text import tame_logs

log = logging.getLogger("perdure")
tame_logs()

_MICROSECOND: Final = timedelta(microseconds=1)


class SessionOptions(Struct, frozen=True, kw_only=True):
    """Options of a session. The defaults are for production; tests pass clocks, ids and probes."""

    clock: Clock | None = None
    codec: Codec | None = None
    ids: Ids = new_id
    limits: Limits = Limits()
    poll_s: float | msgspec.UnsetType | None = msgspec.UNSET
    probe: Probe | None = None


class SessionListener(Protocol):
    """Carries out the effects of the coordinator's commits."""

    def perform(self, effects: Iterable[Effect]) -> None:
        """Carry out effects of a commit."""
        ...

    def performed(self) -> None:
        """Note that all effects of all commits so far were carried out."""
        ...

    def lost_track(self) -> None:
        """Note that the store may have runs to continue that are not in memory."""
        ...

    async def release(self) -> None:
        """Drop all runs from memory. There may be many runs, so each turn of the event loop drops a bounded number of
        them.
        """
        ...

    def let_go(self, error: BaseException) -> None:
        """End everything that does not need the store. The session has ended, and `error` says why."""
        ...

    def expect(self, began: Iterable[LiveOperation]) -> None:
        """Note that these runs of operations are about to be committed and will begin on this engine."""
        ...

    def workflow_of(self, call: RunCall[Any]) -> Workflow[Any, Any]:
        """Return the workflow of a call that a caller wants to start. Raises Misuse, UnknownWorkflow."""
        ...


class Session:
    """The parts of a client or an engine that facets, handles and verbs use. `store` is the store itself.
    `caller_store` is for callers: while the store is busy, it retries for at most `patience_s`. `engine_store` is for
    the engine's own parts: it reports a store that cannot be used.
    """

    def __init__(
        self, store: str | Store, options: SessionOptions, *, kind: Literal["client", "engine"], workflows: Registry
    ) -> None:
        self.kind = kind
        self.workflows = workflows
        self._url = store if isinstance(store, str) else None
        self.store = open_store(store) if isinstance(store, str) else store
        self.clock: Clock = options.clock or self.store.clock or SystemClock()
        self.codec: Codec = options.codec or PlainCodec()
        self.ids = options.ids
        self.limits = options.limits
        self.poll_s = self.store.poll_s if options.poll_s is msgspec.UNSET else options.poll_s
        self._probe = options.probe
        self.tasks: set[asyncio.Task[Any]] = set()
        self._state = "new"
        self._stopped_by: BaseException | None = None
        # the error if the engine's row could not be retired at the shutdown
        self.sign_off_failure: StoreError | None = None
        self._ended = asyncio.Event()  # set once the session has ended, by itself or by a shutdown
        self.followers = Followers()
        self.event_pages = EventPages()
        self.listener: SessionListener
        self.coordinator: Coordinator
        self.mail: MailRoom
        self.patience: Patience
        self.engine_store: Store
        self.caller_store: Store
        self.handlers: HandlerRegistry
        self.operation_runner: OperationRunner

    @property
    def event_retention_us(self) -> int:
        """How long an event is kept that has no expiry of its own, in microseconds."""
        return span_of(self.limits.event_retention, "event_retention") // _MICROSECOND

    # Opening.

    def assemble(self, listener: SessionListener) -> None:
        """Create the parts that use the store. Raises Misuse if the session was opened before."""
        if self._state != "new":
            raise Misuse(f"this {self.kind} was opened before; make a new one")
        self.listener = listener
        self.workflows.load()
        self.engine_store = reporting(self.store, self._start_over)
        self.mail = MailRoom(self.engine_store, self._find_members)
        self.coordinator = Coordinator(
            self.store,
            limits=self.limits,
            clock=self.clock,
            workflows=self.workflows.code,
            listener=_Relay(self, listener),
            probe=self._probe,
        )
        self.coordinator.callers.looked = lambda: self.mail.give_up(self.coordinator.callers.overdue)
        coordinator = self.coordinator
        self.patience = Patience(
            self.limits, coordinator.stats.outages, self.check_unbroken, coordinator.callers.silences
        )
        self.caller_store = patient(self.store, self.patience)
        self.handlers = HandlerRegistry(self.caller_store, self.coordinator.submit, self.ids)
        self.operation_runner = OperationRunner(
            operations=Operations(),
            registry=self.handlers,
            rows=RowCodec(self.codec),
            codec=self.codec,
            ids=self.ids,
            now=self.clock.now,
        )

    def opened(self) -> None:
        """Accept callers from now on."""
        self._state = "open"

    async def close_store(self) -> None:
        """Close the store after opening has failed.

        If the store was given as a URL, the session can be opened again.
        """
        await self.store.close()
        self._state = "new"
        self._stopped_by = None
        self._ended.clear()
        if self._url is not None:
            was, self.store = self.store, open_store(self._url)  # A store object can be opened only once.
            if was.clock is not None and self.clock is was.clock:
                self.clock = self.store.clock or self.clock

    def watch(
        self, recover: Callable[[], Coroutine[Any, Any, object]], is_behind: Callable[[], bool] = lambda: False
    ) -> None:
        """Begin to look regularly for changes that other engines and clients make."""
        if self.poll_s is not None:
            watch = Watch(
                self.engine_store,
                self.coordinator,
                self.mail,
                self.clock,
                offers=self.workflows.offers,
                recover=recover,
                is_behind=is_behind,
                poll_s=self.poll_s,
            )
            self.background(watch.run())

    async def enroll(self) -> EngineRow:
        """Register with the store, under a new id."""
        return await self.store.enroll(
            engine_id=self.ids(self.clock.now()),
            host=socket.gethostname(),
            pid=os.getpid(),
            workflows=self.workflows.names(),
            at=self.clock.now(),
        )

    # Ending.

    @property
    def state(self) -> str:
        """Return "new", "open", "stopping", "stopped", or "broken". "broken" means that the session has stopped by
        itself.
        """
        return self._state

    async def until_stopped(self) -> None:
        """Wait until the session has ended. Raises EngineStopped if it stopped by itself."""
        await self._ended.wait()
        if self._stopped_by is not None:
            raise self._stopped_by

    @contextmanager
    def stopping(self) -> Generator[None]:
        """Shut the session down inside this block. If an exception leaves the block, the engine counts as dead, and
        other engines recover its runs.
        """
        self._state = "stopping"
        try:
            yield
        except BaseException:
            self.kill()
            raise

    def stopped(self) -> None:
        """Note that the session has ended."""
        self._state = "stopped"
        self._ended.set()

    async def sign_off(self) -> None:
        """Commit the submitted ops, retire the engine's row, and close the store."""
        try:
            await asyncio.wait_for(self.coordinator.stop(), self.limits.patience_s)
        except TimeoutError:
            log.warning("the store took nothing for %s s; what is not written is done again", self.limits.patience_s)
            self.coordinator.kill()
        await self.listener.release()
        self._let_go(EngineStopped(f"the {self.kind} was shut down; the run goes on when an engine has it again"))
        if self.coordinator.is_cut_off:
            # An exception has ended the event loop, and all tasks were cancelled, so this is not a graceful end. Runs
            # that were executing stay as a crash leaves them. So a run that ends its process at every start is noticed.
            log.warning("the %s was cut off before it could sign off; its runs are recovered", self.kind)
            self.store.abandon()
            return
        try:
            await self.store.retire(self.coordinator.engine.id)
        except StoreError as error:
            self.sign_off_failure = error
            log.warning("the %s could not sign off (%s); others will notice that it is gone", self.kind, error)
        await self.store.close()

    def kill(self) -> None:
        """Stop at once, as a killed process would: nothing is committed, released or cleaned up."""
        self.stopped()
        for task in self.tasks:
            task.cancel()
        self.coordinator.kill()
        self.store.abandon()
        self._let_go(EngineStopped(f"the {self.kind} was killed"))

    def _start_over(self, error: StoreMisconfigured) -> None:
        self.coordinator.start_over(error)

    def broke(self, error: BaseException) -> None:
        """End the session, because the store is lost for good. All waiting callers get the error. The session sends no
        more heartbeats, so that other engines take over its runs.
        """
        self._state = "broken"
        self._stopped_by = error
        for task in self.tasks:
            task.cancel()
        self._let_go(error)
        self.store.abandon()
        self._ended.set()

    def _let_go(self, error: BaseException) -> None:
        """Raise the error in all callers that wait for something, because they would wait forever."""
        self.listener.let_go(error)
        self.followers.close(error)
        self.mail.close(error)

    # Background tasks.

    def background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background until the session ends."""
        task = outside_of_calls(lambda: asyncio.get_running_loop().create_task(coroutine))
        self.tasks.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the %s failed: %r", self.kind, error, exc_info=error)

    async def cancel_tasks(self) -> None:
        """Cancel everything that runs in the background."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Whether the session accepts callers.

    def check_open(self, *, to_start: bool = False) -> None:
        """Raise EngineStopped unless the session accepts callers. While the session is stopping, it accepts requests,
        but not those that start something (`to_start`).

        Raises Misuse inside a transactional step. Such a step holds the store's writer until it ends, so the request
        could never be answered.
        """
        if step := holds_writer.get()():
            raise Misuse(
                f"the {self.kind} cannot be asked for anything in the transactional step {step!r}: nothing else is "
                "written before it ends. Do it in another step"
            )
        if self._state == "open" or (self._state == "stopping" and not to_start):
            return
        self.check_unbroken()
        kind = self.kind
        if self._state == "new":
            raise EngineStopped(
                f"this {kind} was not opened yet: use it inside `async with {kind.title()}(…) as {kind}:`"
            )
        raise EngineStopped(f"this {kind} was shut down; open a new one on the same store")

    def check_unbroken(self) -> None:
        """Raise EngineStopped if the session has stopped by itself."""
        if self._stopped_by is not None:
            raise EngineStopped(f"this {self.kind} has stopped: {self._stopped_by}") from self._stopped_by

    # Mail.

    async def read_mail(self) -> None:
        """Read the mail that this engine's last commit has left in the store. Raises StoreError."""
        await self.mail.read_for_caller(self.coordinator, self.caller_store)

    async def try_to_read_mail(self) -> None:
        """Read the mail that this engine's last commit has left in the store. If the store or the session cannot do
        that now, this process or another process reads the mail later.
        """
        with suppress(EngineStopped, StoreError):
            await self.read_mail()

    async def _find_members(self, op: ops.NotifyMembers, store: Store) -> ops.NotifyMembers:
        return await self.token_members(store).found(op, self.clock.now())

    def token_members(self, store: Store) -> TokenMembers:
        """Return the stored runs that have cancellation tokens."""
        return TokenMembers(store, RowCodec(self.codec), self.operation_runner.notifications)


class _Relay:
    """Passes calls of the coordinator on to the session or to its listener."""

    def __init__(self, session: Session, listener: SessionListener) -> None:
        self.enroll = session.enroll
        self.broken = session.broke
        self.posted = session.mail.expect
        self.perform = listener.perform
        self.performed = listener.performed
        self.lost_track = listener.lost_track


__all__ = ["Session", "SessionListener", "SessionOptions"]
