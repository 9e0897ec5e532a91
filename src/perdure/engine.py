"""The engine: a session, the facets, and the runtime that executes runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from perdure.client import Client
from perdure.coordinator.recovery import RecoveryReport
from perdure.models.cooperation.define import Operation
from perdure.models.functions.define import Workflow
from perdure.ports import Clock, Codec, Ids, Probe, Store, new_id
from perdure.registry import Registry
from perdure.runtime import Runtime
from perdure.session import Session, SessionOptions
from perdure.values.arguments import Duration, checked, span_of
from perdure.values.limits import Limits


@checked(own=("call", "workflows"))
class Engine:
    """Executes workflows on a store. Use it as an async context manager, one per process and store.

    `store` is a URL ("sqlite:///shop.db", "postgresql://…", "memory://") or a Store. `workflows` are the workflows that
    the engine executes; the default is all decorated workflows. `resources` are objects that steps share, by type, for
    example connection pools and clients. `limits` bound how many steps run at once, how large values may be, and more.

    Leaving the context shuts the engine down gracefully. Killing the process at any moment loses nothing.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        workflows: Iterable[Workflow[Any, Any] | Operation[Any]] | None = None,
        resources: Mapping[type[Any], Callable[[], Any]] | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
        codec: Codec | None = None,
        ids: Ids = new_id,
        poll_s: float | msgspec.UnsetType | None = msgspec.UNSET,
        probe: Probe | None = None,
    ) -> None:
        options = SessionOptions(
            clock=clock, codec=codec, ids=ids, limits=limits or Limits(), poll_s=poll_s, probe=probe
        )
        self.session = Session(store, options, kind="engine", workflows=Registry(workflows))  # internal
        self.runtime = Runtime(self.session, resources or {})  # internal
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
        """Open the store, register with it, and recover runs that no live engine owns.

        Raises StoreBusy if the store cannot be used now, StoreUnavailable if it stops answering during the call,
        StoreBroken, and DuplicateWorkflow.
        """
        await self.runtime.open()

    async def recover(self) -> RecoveryReport:
        """Continue every run that no live engine owns and whose workflow this engine has.

        The engine also calls this when it opens, and then regularly.
        """
        return await self.runtime.recover()

    async def shutdown(self, grace: Duration | None = None) -> None:
        """Shut the engine down: start nothing new, let running steps end within the grace period, commit, and release
        all runs. Idempotent.

        If this call is cancelled, the engine ends at once, as if the process had been killed. Other engines then
        recover its runs.
        """
        grace = self.session.limits.grace_s if grace is None else grace
        await self.runtime.shutdown(span_of(grace, "grace").total_seconds())


AnyClient = Client | Engine  # an engine can do everything that a client can

__all__ = ["AnyClient", "Engine"]
