"""The handle of a run: its id, its outcome, everything that callers can read about it, and every change that they can
request.
"""

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
from perdure.coordinator.call_spans import whole_calls
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
    from perdure.models.graphs.stored_definitions import DefinitionView
    from perdure.models.graphs.token_views import GraphEvents, TokensView

R = TypeVar("R")

_NOT_COMMITTED = "the transaction that it was started in is not committed, or was rolled back: commit first, then ask"


@whole_calls(but=("result",))
@checked(constructor=False)
class RunHandle(Generic[R]):
    """A run, as callers see it. Creating a handle does not check whether the run exists.

    A run that was started in a transaction of the caller (`in_transaction`) does not exist before the commit.
    """

    def __init__(self, session: Session, run_id: str, result: Reader | None, *, in_transaction: bool = False) -> None:
        self.id = run_id
        self._session = session
        self._result = result
        self._in_transaction = in_transaction

    def __repr__(self) -> str:
        return f"<run {self.id!r}>"

    # The outcome.

    async def result(self) -> R:
        """Wait until the run has ended, and return its result. You can call this any number of times.

        Raises RunCancelled or RunFailed. The cause of RunFailed is the rebuilt failure. Raises RunNotFound at once if
        the run was started in a transaction that is not committed yet.
        """
        try:
            run, outcome = await outcome_of(self._session, self.id)
        except RunNotFound as error:
            raise self._not_found() from error
        if run.status == Status.SUCCEEDED and outcome.output is not None:
            value: R = read_result(self._session, run, outcome.output, self._result)
            return value
        raise failure_of(run, outcome, self._session.codec)

    async def status(self) -> str:
        """Return the run's current status. Raises RunNotFound."""
        return (await self.view()).status

    async def view(self) -> RunView:
        """Return the run as it is stored, with its input and output. Raises RunNotFound."""
        found = await Runs(self._session).get(self.id)
        if found is None:
            raise self._not_found()
        return found

    def _not_found(self) -> RunNotFound:
        return RunNotFound(self.id, _NOT_COMMITTED if self._in_transaction else "")

    # Its history and its waits.

    async def history(self) -> History:
        """Return the run's journal, its audit trail, and the entries that retries set aside.

        An operation's run has no journal of its own; its events in the hierarchy are returned as entries. Raises
        RunNotFound.
        """
        return await history_of(self._session, self.id)

    async def audit(self) -> list[AuditView]:
        """Return every change of the run's status, hold, tags or deadline, oldest first. Raises RunNotFound."""
        return await audit_of(self._session, self.id)

    async def tree(self, *, runs_max: int = RUNS_MAX, within: Within | None = None) -> RunTree:
        """Return the run with all runs below it, oldest first, without payloads: as data, as text (`.text()`) or as a
        Mermaid flowchart (`.mermaid()`). With `within`, a run that `within` does not cover is left out together with
        all runs below it, and is not counted. Raises RunNotFound. Raises Misuse if there are more than `runs_max` runs.
        """
        return await tree_of(self._session, self.id, runs_max, within)

    async def hierarchy(self, *, runs_max: int = RUNS_MAX) -> HierarchyView:
        """Return the tree of an operation's run, and the events of each of its messages, oldest first.

        Raises the same errors as `tree`.
        """
        return await hierarchy_of(self._session, self.id, runs_max)

    async def waits(self) -> list[WaitView]:
        """Return what the run waits for. The list is empty while its code or a step runs. Raises RunNotFound."""
        return await waits_of(self._session, self.id)

    # Runs of graphs.

    async def tokens(self, *, graph: Graph[Any, Any] | None = None) -> TokensView:
        """Return the tokens of a graph's run, including tokens that have ended, each with its path, node and state.

        You can draw them: `graph.to_svg(tokens)`. Without `graph`, the definition that the run was started or last
        retried with is used.

        Raises RunNotFound. Raises Misuse if the run is not a run of a graph, or is a run of another graph.
        """
        return await graph_runs.tokens_of(self._session, self.id, graph)

    async def drawing(
        self,
        form: Literal["svg", "mermaid"] = "svg",
        *,
        graph: Graph[Any, Any] | None = None,
        tokens: TokensView | None = None,
    ) -> str:
        """Return a picture of the run's graph with its tokens, as SVG or as a Mermaid flowchart.

        If you have the tokens already, pass them to save a replay. Raises the same errors as `tokens`.
        """
        return await graph_runs.drawing_of(self._session, self.id, form, graph, tokens)

    async def graph_events(
        self, *, after: int = 0, limit: int = 1000, graph: Graph[Any, Any] | None = None
    ) -> GraphEvents:
        """Return the events of a graph's run: tokens were created, moved along edges, joined and ended, and nodes did
        their work. The events are derived from the journal and numbered from 1 on. Each call returns the same events,
        and more as the run continues. `after` is the number of the last event that you have. Raises the same errors as
        `tokens`. Raises Misuse for a limit that is out of range.
        """
        return await graph_runs.graph_events_of(self._session, self.id, after, limit, graph)

    async def definition(self) -> DefinitionView:
        """Return the definition that a graph's run was started or last retried with, as JSON. The code may have changed
        since then. If the run has not done anything yet, the definition in the code is returned. Raises RunNotFound.
        Raises Misuse if the run is not a run of a graph, or if neither the store nor the code has its definition.
        """
        return await graph_runs.definition_of(self._session, self.id)

    # Published values and streams.

    @overload
    async def published(self) -> dict[str, Any]: ...

    @overload
    async def published(self, key: str) -> Any: ...

    async def published(self, key: str | None = None) -> Any:
        """Return the values that the run has published, by key. With `key`, return the value under that key.

        The values are plain JSON values. They stay after the run has ended.

        Raises RunNotFound. Raises NotPublished if the run has published nothing under the key.
        """
        return await published_by(self._session, self.id, key)

    def stream(self, name: str, *, after: int = 0, follow: bool = True) -> AsyncIterator[StreamItemView]:
        """Return the items of a stream with an offset greater than `after`, in order: `async for item in
        run.stream("log")`.

        The loop waits for more items until the run has ended and all items were read. With `follow=False` the loop ends
        after the items that are stored now. You get only items that are durable. To continue later, for example after a
        crash of the reader, pass the offset of the last item as `after`. A stream without items is not an error: the
        loop ends without items. Raises InvalidArguments at once. The loop raises RunNotFound, StoreError and
        EngineStopped.
        """
        return stream_of(self._session, self.id, name, after, follow)

    async def streams(self) -> dict[str, int]:
        """Return the names of the run's streams, and the offset of the last item of each. Raises RunNotFound."""
        return await streams_of(self._session, self.id)

    # Changes.

    async def send(
        self, event: Event | NamedEvent, *, key: str | None = None, strict: bool = False, actor: str = "api"
    ) -> Delivered | Queued:
        """Send an event to the run, as `engine.send(event, to=run.id)` does."""
        return await send_event(self._session, event, self.id, key, strict, actor)

    async def cancel(self, reason: str = "", *, expected_version: int | None = None, actor: str = "api") -> bool:
        """Cancel the run.

        Its running steps are cancelled, and results that arrive later are dropped. The run's code does not notice the
        cancellation.

        Once this has returned True, no engine begins a further step of the run or of a run below it, except
        compensations. If a function has emitted messages, their hierarchies roll back if the function's compensations
        say so. A run of an operation rolls back at its next step boundary, with all runs below it. Returns False if the
        run has ended or does not exist. Raises ConcurrentModification if the run is not at `expected_version`.
        """
        return await cancel_run(
            self._session, self.id, expected_version=expected_version, reason=reason, actor=actor
        )  # fmt: skip

    async def pause(self, reason: str = "", *, expected_version: int | None = None, actor: str = "api") -> bool:
        """Hold the run until `resume`.

        Its running steps are cancelled now, and run again after `resume`. Returns False if the run is held already.
        Raises RunNotFound and RunFinished. Raises ConcurrentModification if the run is not at `expected_version`.
        """
        return await pause_run(
            self._session, self.id, expected_version=expected_version, reason=reason, actor=actor
        )  # fmt: skip

    async def resume(self, *, expected_version: int | None = None, actor: str = "api") -> bool:
        """Lift the run's hold, whatever its kind, so that the run continues.

        Returns False if the run is not held. Raises RunNotFound. Raises ConcurrentModification if the run is not at
        `expected_version`.
        """
        return await resume_run(self._session, self.id, expected_version=expected_version, actor=actor)

    async def retry(self, *, expected_version: int | None = None, actor: str = "api") -> Self:
        """Run a failed run again, from the entry whose failure ended it.

        Everything that the run did before that entry stays done. Everything from that entry on happens again. Events
        that the run read after that entry can be read again, in the same order. If a timeout ended the run, or its
        deadline has passed, that time begins again.

        Failed children that the run had started are retried first, unless the run had handled their failures. If the
        process dies during the retry, retry the run again. If two callers retry a run at the same time, it is retried
        once. Returns this handle.

        Raises RunNotFound and RunNotRetryable. Raises ConcurrentModification if the run is not at `expected_version`.
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
        """Replace the run's tags, its deadline, or both.

        Pass None as `deadline` to remove the deadline. Raises RunNotFound. Raises ConcurrentModification if the run is
        not at `expected_version`.
        """
        return await update_run(
            self._session, self.id, expected_version=expected_version, tags=tags, deadline=deadline, actor=actor
        )

    async def roll_back(self, reason: str = "", *, actor: str = "api") -> bool:
        """Roll back a run of an operation that has ended, and all runs below it, newest first.

        Returns False, and does nothing, if a run above or below it has not ended, or if no work needs to be rolled
        back.
        """
        return await roll_back_hierarchy(self._session, self.id, reason=reason, actor=actor)


__all__ = ["RunHandle"]
