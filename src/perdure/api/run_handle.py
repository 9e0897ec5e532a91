"""A run from outside: its id, its outcome, all that can be read of it, and all that can be asked of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

import msgspec

from perdure.api import graph_runs
from perdure.api.events import send_event
from perdure.api.hierarchies import roll_back_hierarchy
from perdure.api.histories import RUNS_MAX, audit_of, hierarchy_of, history_of, tree_of
from perdure.api.outcomes import failure_of, outcome_of, read_result
from perdure.api.run_changes import cancel_run, pause_run, resume_run, retry_run, update_run
from perdure.api.runs import Runs
from perdure.api.streams import published_by, stream_of, streams_of
from perdure.api.waits import WaitView, waits_of
from perdure.errors import RunNotFound
from perdure.kernel.rules.delivery import Delivered, Queued
from perdure.kernel.status import Status
from perdure.models.functions.events import Event, NamedEvent
from perdure.ports import Within
from perdure.session import Session
from perdure.values.arguments import Duration, checked
from perdure.values.json import Reader
from perdure.views import AuditView, HierarchyView, History, RunTree, RunView, StreamItemView

if TYPE_CHECKING:
    from perdure.models.graphs.define import Graph
    from perdure.models.graphs.stored import DefinitionView
    from perdure.models.graphs.token_views import GraphEvents, TokensView

R = TypeVar("R")

_NOT_COMMITTED = "the transaction that it was started in is not committed, or was rolled back: commit first, then ask"


@checked(constructor=False)
class RunHandle(Generic[R]):
    """A run, from outside. Making a handle asks nobody whether the run exists.

    A run that was started in a transaction of the caller's (`in_transaction`) is not there before the commit.
    """

    def __init__(self, session: Session, run_id: str, result: Reader | None, *, in_transaction: bool = False) -> None:
        self.id = run_id
        self._session = session
        self._result = result
        self._in_transaction = in_transaction

    def __repr__(self) -> str:
        return f"<run {self.id!r}>"

    # Its outcome.

    async def result(self) -> R:
        """Wait for the run to end; return what it returned. Can be called any number of times.

        Raises RunFailed (its cause is the failure, rebuilt) or RunCancelled. Raises RunNotFound, at once, if the run
        was started in a transaction that is not committed.
        """
        try:
            run, outcome = await outcome_of(self._session, self.id)
        except RunNotFound as error:
            raise self._not_found() from error
        if run.status == Status.SUCCEEDED and outcome.output is not None:
            value: R = read_result(self._session, run, outcome.output, self._result)
            return value
        raise failure_of(run, outcome)

    async def status(self) -> str:
        """Return the run's status now. Raises RunNotFound."""
        return (await self.view()).status

    async def view(self) -> RunView:
        """Return the run as it is stored, with its input and output. Raises RunNotFound."""
        found = await Runs(self._session).get(self.id)
        if found is None:
            raise self._not_found()
        return found

    def _not_found(self) -> RunNotFound:
        return RunNotFound(self.id, _NOT_COMMITTED if self._in_transaction else "")

    # What it did, and what it waits for.

    async def history(self) -> History:
        """Return what the run did, and every change of its status. The journal of an operation's run is the list of
        the events of its lineage. Raises RunNotFound."""
        return await history_of(self._session, self.id)

    async def audit(self) -> list[AuditView]:
        """Return every change of the run's status, hold, tags or deadline, oldest first. Raises RunNotFound."""
        return await audit_of(self._session, self.id)

    async def tree(self, *, runs_max: int = RUNS_MAX, within: Within | None = None) -> RunTree:
        """Return the run with its children and theirs, oldest first, without payloads: as data, as text (`.text()`) or
        as a Mermaid chart (`.mermaid()`). `within` leaves out other children, with all below those; they do not count
        either. Raises RunNotFound, and Misuse if there are more than `runs_max`."""
        return await tree_of(self._session, self.id, runs_max, within)

    async def hierarchy(self, *, runs_max: int = RUNS_MAX) -> HierarchyView:
        """Return the tree of an operation's run, and what happened to each of its messages, in the order of time.
        Raises as `tree`."""
        return await hierarchy_of(self._session, self.id, runs_max)

    async def waits(self) -> list[WaitView]:
        """Return what the run waits for; nothing while its code or a step runs. Raises RunNotFound."""
        return await waits_of(self._session, self.id)

    # Runs of graphs.

    async def tokens(self, *, graph: Graph[Any, Any] | None = None) -> TokensView:
        """Return where the tokens of a graph's run are and were, each with its path and state. They can be looked at,
        or drawn: `graph.to_svg(tokens)`. The definition that the run was started with counts, unless a graph is given.

        Raises RunNotFound; Misuse if the run is none of a graph, or of another one.
        """
        return await graph_runs.tokens_of(self._session, self.id, graph)

    async def drawing(
        self,
        form: Literal["svg", "mermaid"] = "svg",
        *,
        graph: Graph[Any, Any] | None = None,
        tokens: TokensView | None = None,
    ) -> str:
        """Return a picture of the run's graph with its tokens, as SVG or as a Mermaid flowchart. Handing in tokens that
        you have already saves a replay. Raises as `tokens`."""
        return await graph_runs.drawing_of(self._session, self.id, form, graph, tokens)

    async def graph_events(
        self, *, after: int = 0, limit: int = 1000, graph: Graph[Any, Any] | None = None
    ) -> GraphEvents:
        """Return what happened in a graph's run: tokens that were created, moved along edges, met and ended, and what
        nodes did. The events are numbered from 1 on and derived from the journal: the same ones each time, and more as
        the run goes on. `after` is the number of the last one that you have. Raises as `tokens`, and Misuse for a limit
        that is none."""
        return await graph_runs.graph_events_of(self._session, self.id, after, limit, graph)

    async def definition(self) -> DefinitionView:
        """Return the definition that a graph's run was started with, or last retried with, as JSON. It can be read back
        when the code has changed since. A run of which only its start is stored has the definition of the code. Raises
        RunNotFound; Misuse if the run is none of a graph, or its definition is nowhere."""
        return await graph_runs.definition_of(self._session, self.id)

    # What it publishes.

    @overload
    async def published(self) -> dict[str, Any]: ...

    @overload
    async def published(self, key: str) -> Any: ...

    async def published(self, key: str | None = None) -> Any:
        """Return what the run shows now: all of it by key, or the value under one key. Values are plain JSON values.

        They stay when the run has ended. Raises RunNotFound, and NotPublished if there is nothing under the key.
        """
        return await published_by(self._session, self.id, key)

    def stream(self, name: str, *, after: int = 0, follow: bool = True) -> AsyncIterator[StreamItemView]:
        """Return the items of a stream with an offset greater than `after`, in order: `async for item in
        run.stream(…)`.

        The loop goes on while the run lives, and ends when the run has ended and all was read; with `follow=False` it
        ends with what is there. An item is given once it is durable. To go on later, also after a crash of the reader,
        pass the offset of the last item as `after`. A stream that nobody has written to is empty. Raises
        InvalidArguments at once; RunNotFound, StoreError and EngineStopped from the loop.
        """
        return stream_of(self._session, self.id, name, after, follow)

    async def streams(self) -> dict[str, int]:
        """Return the names of the run's streams, and the offset of the last item of each. Raises RunNotFound."""
        return await streams_of(self._session, self.id)

    # What can be asked of it.

    async def send(
        self, event: Event | NamedEvent, *, key: str | None = None, strict: bool = False, actor: str = "api"
    ) -> Delivered | Queued:
        """Send an event to the run, as `engine.send(event, to=run.id)` does."""
        return await send_event(self._session, event, self.id, key, strict, actor)

    async def cancel(self, reason: str = "", *, expected_version: int | None = None, actor: str = "api") -> bool:
        """End the run as cancelled: running steps are cancelled, late results dropped, its code sees nothing.

        Once this has returned True, no further step begins, of the run or of a run below it, on other engines too; but
        for compensations. A hierarchy that a function has emitted gives up when the function's compensations say so.
        A run of an operation, and all below it, give up at their next step boundary, and roll back. Returns False if it
        has ended already or does not exist. Raises ConcurrentModification if it is not at `expected_version`.
        """
        return await cancel_run(
            self._session, self.id, expected_version=expected_version, reason=reason, actor=actor
        )  # fmt: skip

    async def pause(self, reason: str = "", *, expected_version: int | None = None, actor: str = "api") -> bool:
        """Hold the run until `resume`. Its running steps are cancelled, and run again then. Returns False if it is held
        already. Raises RunNotFound, RunFinished, and ConcurrentModification if it is not at `expected_version`."""
        return await pause_run(
            self._session, self.id, expected_version=expected_version, reason=reason, actor=actor
        )  # fmt: skip

    async def resume(self, *, expected_version: int | None = None, actor: str = "api") -> bool:
        """Lift the run's hold, whatever its kind, and go on. Returns False if it is not held. Raises RunNotFound, and
        ConcurrentModification if it is not at `expected_version`."""
        return await resume_run(self._session, self.id, expected_version=expected_version, actor=actor)

    async def retry(self, *, expected_version: int | None = None, actor: str = "api") -> Self:
        """Run a failed run again: what it did before the entry whose failure ended it stays done.

        The rest happens again. Events that it had read are there to be read again, in order; a timeout that ended the
        run, and a deadline that has passed, begin anew. Children that it had started, that have failed, and whose
        failures it had not dealt with, are retried before it; if the process dies in between, retry it again. A run
        that two callers retry at the same time is retried once. Returns this handle.

        Raises RunNotFound, RunNotRetryable, and ConcurrentModification if it is not at `expected_version`.
        """
        await retry_run(self._session, self.id, expected_version=expected_version, actor=actor)
        return self

    async def update(
        self,
        *,
        expected_version: int | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | Duration | msgspec.UnsetType | None = msgspec.UNSET,
        actor: str = "api",
    ) -> RunView:
        """Replace the run's tags or deadline. Raises ConcurrentModification if it is not at `expected_version`."""
        return await update_run(
            self._session, self.id, expected_version=expected_version, tags=tags, deadline=deadline, actor=actor
        )

    async def roll_back(self, reason: str = "", *, actor: str = "api") -> bool:
        """Undo a run of an operation that has ended, and all below it: everything that was committed is rolled back,
        the newest first. Returns False, and does nothing, if a run above or below has not ended, or if there is nothing
        to undo."""
        return await roll_back_hierarchy(self._session, self.id, reason=reason, actor=actor)


__all__ = ["RunHandle"]
