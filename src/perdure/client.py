"""The API of an engine without its workflow code: start runs, send events, read and change runs from any process.

A client registers with the store, as an engine does, but owns no runs. If an engine owns a run, that engine decides
about the changes that a client requests. If no engine owns the run, the client decides itself.

The verbs are in api/verbs.py. Everything about one run (status, result, cancel, retry) is on the run's handle, in
api/run_handle.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import msgspec

from perdure.api import verbs
from perdure.api.artifacts import Artifacts
from perdure.api.audit import AuditTrail
from perdure.api.credentials import Credentials
from perdure.api.dead_letters import DeadLetters
from perdure.api.engines import Engines
from perdure.api.events import Events
from perdure.api.records import Records
from perdure.api.runs import Runs
from perdure.api.tasks import Tasks
from perdure.api.topics import Topics
from perdure.kernel.effects import Drop, Effect, Finish
from perdure.models.cooperation.live_run import LiveOperation
from perdure.models.functions.define import RunCall, Workflow
from perdure.ports import Clock, Codec, Ids, Probe, Store, new_id
from perdure.registry import Registry, called
from perdure.session import Session, SessionOptions
from perdure.values.arguments import checked
from perdure.values.limits import Limits


class _Bystander:
    """The listener of a client. When a run ends, the listener wakes the callers that wait for that run. It executes no
    runs.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Finish):
                self._session.followers.ended(effect.run.id, (effect.run, effect.outcome))
            elif isinstance(effect, Drop):
                self._session.followers.ended(effect.run_id, None)

    def performed(self) -> None: ...

    def lost_track(self) -> None: ...

    async def release(self) -> None: ...

    def let_go(self, error: BaseException) -> None: ...

    def expect(self, began: Iterable[LiveOperation]) -> None: ...

    def workflow_of(self, call: RunCall[Any]) -> Workflow[Any, Any]:
        return called(call)


@checked(own=("call",))
class Client:
    """Uses a store and the engines that share it, but executes no runs.

    Use it as an async context manager; one per process is enough.

    `store` is a URL ("sqlite:///shop.db", "postgresql://…") or a Store. `codec` must be the codec that the engines use.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        clock: Clock | None = None,
        codec: Codec | None = None,
        ids: Ids = new_id,
        limits: Limits | None = None,
        poll_s: float | msgspec.UnsetType | None = msgspec.UNSET,
        probe: Probe | None = None,
    ) -> None:
        options = SessionOptions(
            clock=clock, codec=codec, ids=ids, limits=limits or Limits(), poll_s=poll_s, probe=probe
        )
        self.session = Session(store, options, kind="client", workflows=Registry([]))  # internal
        self.runs = Runs(self.session)
        self.tasks = Tasks(self.session)
        self.artifacts = Artifacts(self.session)
        self.records = Records(self.session)
        self.events = Events(self.session)
        self.dead_letters = DeadLetters(self.session)
        self.topics = Topics(self.session)
        self.engines = Engines(self.session)
        self.audit = AuditTrail(self.session)
        self.credentials = Credentials(self.session)

    start = verbs.start
    start_many = verbs.start_many
    run = verbs.run
    prepare_start = verbs.prepare_start
    send = verbs.send
    send_many = verbs.send_many
    emit = verbs.emit
    handle = verbs.handle
    until_stopped = verbs.until_stopped

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def open(self) -> None:
        """Open the store, and register with it.

        Raises StoreError. If you passed the store as a URL, you may call this again after an error.
        """
        session = self.session
        session.assemble(_Bystander(session))
        try:
            await session.store.open()
            await session.coordinator.start()
        except BaseException:
            await session.close_store()
            raise
        session.opened()
        session.watch(self.engines.mark_dead)

    async def shutdown(self) -> None:
        """Finish the requests that callers have made, and close the store.

        Idempotent. If this call is cancelled, the client closes at once.
        """
        session = self.session
        if session.state == "open":
            with session.stopping():
                await session.cancel_tasks()
                await session.sign_off()
        elif session.state == "broken":
            await session.cancel_tasks()
        else:
            return
        session.stopped()


__all__ = ["Client"]
