"""The engine's verbs for looking at runs: one, several, pages of them, their histories, the tree below one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from perdure.arguments import checked
from perdure.errors import InvalidArguments, Misuse, RunNotFound
from perdure.kernel.cooperation import read_version, stored_version
from perdure.kernel.records import DEFINITION, Run
from perdure.kernel.status import FINISHED, Status
from perdure.models.functions.checks import (
    checked_limit,
    checked_number,
    checked_option,
    checked_tags,
    checked_text,
    checked_texts,
    checked_time,
    checked_within,
)
from perdure.ports import Codec, RunFilter, Store, Within
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
    shown_time,
    to_cursor,
)

log = logging.getLogger("perdure")

_PAGE = 200


@checked(own=("ids",))
class Inspecting:
    """What an engine that has these parts can tell of runs, its own and others'."""

    _patient_store: Store
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
        wanted = checked_texts(ids, "ids", "a run's id")
        self._check_open()
        if not wanted:
            return {}
        found = await self._patient_store.get(wanted)
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
        checked_limit(limit)
        for argument, text in (("workflow", workflow), ("hold", hold), ("parent", parent)):
            checked_option(text, argument)
        self._check_open()
        statuses = (status,) if isinstance(status, str) else tuple(checked_texts(status, "status"))
        if unknown := set(statuses) - set(Status):
            raise Misuse(f"no such status: {', '.join(sorted(unknown))}; there are {', '.join(Status)}")
        found = await self._patient_store.list(
            RunFilter(
                workflow=workflow,
                statuses=statuses,
                hold=hold,
                parent_id=parent,
                tags=checked_tags(tags),
                created_from=checked_time(created_from, "created_from"),
                created_before=checked_time(created_before, "created_before"),
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
        return [engine_view(engine) for engine in await self._patient_store.engines(living=True)]

    async def _with_stranded(self, views: list[RunView]) -> list[RunView]:
        """Say of runs that nobody has, and that nobody can take, why."""
        if all(view.status in FINISHED for view in views):
            return views
        living = await self._patient_store.engines(living=True)
        code = {pair for engine in living for pair in engine.workflows}
        owners = {engine.id for engine in living}
        names = {name for name, _ in code}
        handlers = {(name, read_version(version)[0]) for name, version in code}

        def is_stranded(view: RunView) -> bool:
            if view.owner in owners or view.status in FINISHED:
                return False
            if view.topic == "":  # stored by an earlier version
                return view.workflow not in names
            if view.topic is None:
                return (view.workflow, view.workflow_version) not in code
            if view.status == Status.CREATED:  # Every version may begin it.
                return (view.workflow, view.topic) not in handlers
            return (view.workflow, stored_version(view.topic, view.workflow_version)) not in code

        def lacks(view: RunView) -> str:
            which = named(view.workflow, view.workflow_version, view.topic)
            if not view.topic or (view.workflow, view.topic) not in handlers:
                return which
            found = [read_version(version) for name, version in sorted(code) if name == view.workflow]
            has = ", ".join(repr(version) for topic, version in found if topic == view.topic)
            which = which if view.workflow_version else f"{which} without a version"
            return f"{which}, by which it was begun; there are versions: {has}"

        return [replace(view, stranded=f"no engine has {lacks(view)}") if is_stranded(view) else view for view in views]

    async def _warn_of_missing_code(self) -> None:
        """Say of runs that the handlers of this engine have begun, but no engine can go on with, why: they were begun
        by another version. Looks at the newest of each."""
        at_work = (Status.RUNNING, Status.SUSPENDED, Status.ROLLING_BACK)
        for name in sorted({name for _, name in self._workflows.operations}):
            runs = await self._patient_store.list(RunFilter(workflow=name, statuses=at_work, limit=_PAGE))
            views = await self._with_stranded([run_view(run) for run in runs if run.model == "operation"])
            stranded = Counter(view.stranded for view in views if view.stranded is not None)
            for reason, count in sorted(stranded.items()):
                log.warning("%d or more runs of operation %r do not go on: %s", count, name, reason)

    async def history(self, id: str) -> History:
        """What a run did, and every change of its status. The journal of an operation's run are the events of its
        lineage. Raises RunNotFound."""
        self._check_open()
        _, entries = await self._patient_store.journal(checked_text(id, "a run's id"))
        is_graph = any(entry.kind == DEFINITION for entry in entries)
        told = partial(entry_view, codec=self._codec, is_graph=is_graph)
        journal = [told(entry) for entry in entries if entry.kind != DEFINITION]
        if not journal:
            rows = (await self._patient_store.scopes([id])).events
            journal = [message_event_view(row, self._codec) for row in rows if row.scope == id]
        return History(
            journal=journal,
            audit=[audit_view(audit) for audit in await self._patient_store.audit(id)],
            archived=[told(entry, attempt=attempt) for attempt, entry in await self._patient_store.archived(id)],
        )

    async def audit(self, id: str) -> list[AuditView]:
        """Every change of a run's status, hold, tags or deadline, oldest first. Raises RunNotFound."""
        self._check_open()
        found = await self._patient_store.audit(checked_text(id, "a run's id"))
        if not found:
            raise RunNotFound(id)
        return [audit_view(one) for one in found]

    async def hierarchy(self, id: str, *, runs_max: int = 10_000) -> HierarchyView:
        """What followed from an emission (by the id of its root), or the part of it from a run on: the runs, and what
        happened to each of its messages, in the order of time. Raises as `tree`."""
        tree = await self.tree(id, runs_max=runs_max)
        found = await self._patient_store.hierarchy(id)
        topics = {message.id: message.topic for message in found.messages}
        rows = sorted(found.events, key=lambda row: (row.created_at, row.scope, row.seq))
        return HierarchyView(
            tree=tree,
            events=[hierarchy_event_view(row, topics.get(row.message_id, ""), self._codec) for row in rows],
        )

    async def tree(self, id: str, *, runs_max: int = 10_000, within: Within | None = None) -> RunTree:
        """A run with its children and theirs, oldest first, without payloads: as data, as text (`.text()`) or as a
        Mermaid chart (`.mermaid()`). With the id of a root emission, all that follows from it. `within` leaves out
        other children, with all below those; they do not count either. Raises RunNotFound, and Misuse if there are
        more than `runs_max`."""
        self._check_open()
        checked_within(within)
        checked_number(runs_max, "runs_max")
        loaded = (await self._patient_store.load([checked_text(id, "a run's id")])).get(id)
        view = run_view(loaded.run) if loaded is not None else await self._emission(id)
        root = RunTree(run=view, children=[])
        level, count = [root], 1
        while level:
            below: list[RunTree] = []
            for parent in level:
                async for run in self._children(parent.run.id, within):
                    count += 1
                    if count > runs_max:
                        raise Misuse(f"run {id!r} has more than {runs_max} runs below it; look at a smaller part")
                    child = RunTree(run=run_view(run), children=[])
                    parent.children.append(child)
                    below.append(child)
                parent.children.reverse()
            level = below
        return root

    async def _emission(self, id: str) -> RunView:
        """A root emission, as if it were a run. Raises RunNotFound."""
        found = await self._patient_store.hierarchy(id)
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
        at = shown_time(emitted.created_at)
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

    async def _children(self, run_id: str, within: Within | None) -> AsyncIterator[Run]:
        """Newest first, as all listings."""
        parts = [RunFilter(parent_id=run_id, limit=_PAGE)]
        if within is not None:
            parts = [replace(parts[0], workflow=workflow) for workflow in within.workflows] + [
                replace(parts[0], tags={key: value}) for key, value in within.tags
            ]
        after: tuple[int, str] | None = None
        while True:
            found: dict[str, Run] = {}
            for part in parts:
                found |= {run.id: run for run in await self._patient_store.list(replace(part, after=after))}
            page = sorted(found.values(), key=lambda run: (run.created_at, run.id), reverse=True)[:_PAGE]
            if not page:
                return
            for run in page:
                yield run
            after = (page[-1].created_at, page[-1].id)
