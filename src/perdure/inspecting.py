"""The engine's verbs for looking at runs: one, several, pages of them, their histories, the tree below one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from perdure.errors import InvalidArguments, Misuse, RunNotFound
from perdure.kernel.records import Run
from perdure.kernel.status import FINISHED, Status
from perdure.models.functions.checks import checked_text
from perdure.models.functions.context import from_datetime, to_datetime
from perdure.ports import Codec, RunFilter, Store
from perdure.registry import Registry, named
from perdure.views import (
    AuditView,
    EngineView,
    HierarchyView,
    History,
    Page,
    RunTree,
    RunView,
    audit_view,
    engine_view,
    entry_view,
    from_cursor,
    hierarchy_event_view,
    message_event_view,
    run_view,
    to_cursor,
)

if TYPE_CHECKING:
    from perdure.models.graphs.define import Graph
    from perdure.models.graphs.tracing import TokensView

_PAGE = 200


class Inspecting:
    """What an engine that has these parts can tell of runs, its own and others'."""

    _store: Store
    _codec: Codec
    _workflows: Registry
    _payload_bytes_max: int

    def _check_open(self, *, to_start: bool = False) -> None:
        raise NotImplementedError

    async def get(self, id: str) -> RunView | None:
        """A run with its payloads, or None."""
        return (await self.get_many([id])).get(id)

    async def get_many(self, ids: Sequence[str]) -> dict[str, RunView]:
        """Runs by id, in one query; unknown ids are absent; an empty list asks nothing."""
        if isinstance(ids, str):
            raise InvalidArguments(f"get_many() takes a list of ids; for the one run {ids!r} use get()")
        for run_id in ids:
            checked_text(run_id, "a run's id")
        self._check_open()
        if not ids:
            return {}
        found = await self._store.get(list(ids))
        views = [run_view(stored.run, stored, self._codec) for stored in found.values()]
        return {view.id: view for view in await self._with_stranded(views)}

    async def runs(
        self,
        *,
        workflow: str | None = None,
        status: str | Sequence[str] = (),
        hold: str | None = None,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """A page of runs, newest first, without payloads. Each page's cursor gets the next."""
        if not 1 <= limit <= 1000:
            raise Misuse(f"limit is between 1 and 1000, not {limit}")
        self._check_open()
        statuses = (status,) if isinstance(status, str) else tuple(status)
        if unknown := set(statuses) - set(Status):
            raise Misuse(f"no such status: {', '.join(sorted(unknown))}; there are {', '.join(Status)}")
        found = await self._store.list(
            RunFilter(
                workflow=workflow,
                statuses=statuses,
                hold=hold,
                parent_id=parent,
                tags=dict(tags or {}),
                created_from=None if created_from is None else from_datetime(created_from),
                created_before=None if created_before is None else from_datetime(created_before),
                after=None if cursor is None else from_cursor(cursor),
                limit=limit + 1,
            )
        )
        more = len(found) > limit
        views = await self._with_stranded([run_view(run) for run in found[:limit]])
        return Page(runs=views, cursor=to_cursor(found[limit - 1]) if more else None)

    async def engines(self) -> list[EngineView]:
        """The engines that share this store and are alive, the oldest first."""
        self._check_open()
        return [engine_view(engine) for engine in await self._store.engines() if engine.alive]

    async def _with_stranded(self, views: list[RunView]) -> list[RunView]:
        """Say of runs that nobody has, and that nobody can take, why."""
        if all(view.owner is not None or view.status in FINISHED for view in views):
            return views
        living = [engine for engine in await self._store.engines() if engine.alive]
        code = {pair for engine in living for pair in engine.workflows}
        return [
            replace(view, stranded=f"no engine has {named(view.workflow, view.workflow_version)}")
            if view.owner is None and view.status not in FINISHED and (view.workflow, view.workflow_version) not in code
            else view
            for view in views
        ]

    async def history(self, id: str) -> History:
        """What a run did, and every change of its status. The journal of an operation's run are the events of its
        lineage. Raises RunNotFound."""
        self._check_open()
        _, entries = await self._store.journal(checked_text(id, "a run's id"))
        journal = [entry_view(entry, self._codec) for entry in entries]
        if not journal:
            rows = (await self._store.hierarchy(id)).events
            journal = [message_event_view(row, self._codec) for row in rows if row.scope == id]
        return History(
            journal=journal,
            audit=[audit_view(audit) for audit in await self._store.audit(id)],
            archived=[entry_view(e, self._codec, attempt) for attempt, e in await self._store.archived(id)],
        )

    async def audit(self, id: str) -> list[AuditView]:
        """Every change of a run's status, hold, tags or deadline, oldest first. Raises RunNotFound."""
        self._check_open()
        found = await self._store.audit(checked_text(id, "a run's id"))
        if not found:
            raise RunNotFound(id)
        return [audit_view(one) for one in found]

    async def tokens(self, id: str, *, graph: Graph[Any, Any] | None = None) -> TokensView:
        """Where the tokens of a run of a graph are and were, while it lives and after: to be looked at, or for
        `graph.to_svg(tokens)`. A client, and an engine that does not run the graph, must be given it.

        Raises RunNotFound; Misuse if the run is none of a graph, or of another one.
        """
        run, found = await self._graph_of(id, graph)
        input, entries = await self._store.journal(id)
        done: asyncio.Future[TokensView] = asyncio.get_running_loop().create_future()

        def trace() -> None:  # A replay has tasks of its own, so it cannot happen inside another's.
            try:
                view = found.trace(run, input, entries, self._codec, self._payload_bytes_max)
            except Exception as error:  # noqa: BLE001 - it is raised where it is asked for
                done.set_exception(error)
            else:
                done.set_result(view)

        asyncio.get_running_loop().call_soon(trace)
        return await done

    async def drawing(
        self, id: str, form: Literal["svg", "mermaid"] = "svg", *, graph: Graph[Any, Any] | None = None
    ) -> str:
        """A picture of a run's graph with its tokens, as SVG or as a Mermaid flowchart. Raises as `tokens`."""
        tokens = await self.tokens(id, graph=graph)
        _, found = await self._graph_of(id, graph)
        text: str = found.to_svg(tokens) if form == "svg" else found.to_mermaid(tokens)
        return text

    async def _graph_of(self, id: str, graph: Graph[Any, Any] | None) -> tuple[Run, Any]:
        """A run, and the graph that it is of. Raises RunNotFound, Misuse."""
        self._check_open()
        stored = (await self._store.get([checked_text(id, "a run's id")])).get(id)
        if stored is None:
            raise RunNotFound(id)
        run = stored.run
        found: Any = self._workflows.get((run.workflow, run.workflow_version)) if graph is None else graph
        # Who starts a run by its name alone does not know that it is a graph's: the code does.
        if run.model != "graph" and (found is None or found.model != "graph"):
            raise Misuse(f"run {id!r} is of a {run.model}: only those of graphs have tokens")
        which = named(run.workflow, run.workflow_version)
        if found is None:
            raise Misuse(f"run {id!r} is of {which}, which is not known here; hand it in: tokens(id, graph=…)")
        if (found.name, found.version) != (run.workflow, run.workflow_version) or found.model != "graph":
            raise Misuse(f"run {id!r} is of {which}, not of {found!r}")
        return run, found

    async def hierarchy(self, id: str, *, runs_max: int = 10_000) -> HierarchyView:
        """What followed from an emission (by the id of its root), or the part of it from a run on: the runs, and what
        happened to each of its messages, in the order of time. Raises as `tree`."""
        tree = await self.tree(id, runs_max=runs_max)
        found = await self._store.hierarchy(id)
        topics = {message.id: message.topic for message in found.messages}
        rows = sorted(found.events, key=lambda row: (row.created_at, row.scope, row.seq))
        return HierarchyView(
            tree=tree,
            events=[hierarchy_event_view(row, topics.get(row.message_id, ""), self._codec) for row in rows],
        )

    async def tree(self, id: str, *, runs_max: int = 10_000) -> RunTree:
        """A run with its children and theirs, oldest first, without payloads: as data, as text (`.text()`) or as a
        Mermaid chart (`.mermaid()`). With the id of a root emission, all that follows from it. Raises RunNotFound, and
        Misuse if there are more than `runs_max`."""
        self._check_open()
        loaded = (await self._store.load([checked_text(id, "a run's id")])).get(id)
        view = run_view(loaded.run) if loaded is not None else await self._emission(id)
        root = RunTree(run=view, children=[])
        level, count = [root], 1
        while level:
            below: list[RunTree] = []
            for parent in level:
                async for run in self._children(parent.run.id):
                    count += 1
                    if count > runs_max:
                        raise Misuse(f"run {id!r} has more than {runs_max} runs below it; look at a smaller part")
                    child = RunTree(run=run_view(run), children=[])
                    parent.children.insert(0, child)
                    below.append(child)
            level = below
        return root

    async def _emission(self, id: str) -> RunView:
        """A root emission, as if it were a run. Raises RunNotFound."""
        found = await self._store.hierarchy(id)
        emitted = next((row for row in found.events if row.scope == id and row.key == "EMITTED"), None)
        if emitted is None:
            raise RunNotFound(id)
        message = next(message for message in found.messages if message.id == emitted.message_id)
        statuses = {run.status for run in found.runs if run.parent_id == id}
        for status in ("running", Status.ROLLBACK_FAILED, Status.ROLLED_BACK):
            if status in statuses or (status == "running" and statuses - FINISHED):
                break
        else:
            status = Status.SUCCEEDED
        at = to_datetime(emitted.created_at)
        return RunView(
            id=id,
            workflow=message.topic,
            workflow_version="",
            model="message",
            status=status,
            version=1,
            attempt=1,
            owner=None,
            parent_id=None,
            tags={},
            hold=None,
            deadline=None,
            recoveries=0,
            created_at=at,
            started_at=at,
            updated_at=at,
            completed_at=None,
        )

    async def _children(self, run_id: str) -> AsyncIterator[Run]:
        """Newest first, as all listings."""
        after: tuple[int, str] | None = None
        while page := await self._store.list(RunFilter(parent_id=run_id, after=after, limit=_PAGE)):
            for run in page:
                yield run
            after = (page[-1].created_at, page[-1].id)
