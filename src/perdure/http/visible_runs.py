"""The reach of a caller whose scopes apply only to some runs: which runs, tasks and artifacts it may see and change.

For the caller, a run that is out of reach looks like a run that does not exist. The guards `reads` and `operates` of
perdure.http.access refuse a caller whose scopes apply only to some runs. So this caller can use a route only if the
route has a guard of this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote

from litestar.handlers import BaseRouteHandler
from msgspec.structs import replace

from perdure.engine import AnyClient
from perdure.errors import ArtifactNotFound, RunExists, RunNotFound, TaskNotFound, UnknownWorkflow
from perdure.http.access import Asking, Caller, caller_of
from perdure.http.params import Wanted
from perdure.http.problems import Refused
from perdure.http.scopes import Grant, Scope
from perdure.ports import Within
from perdure.views import Page, RunView

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Reach:
    """The reach of a caller: which runs it may read and operate. For a caller whose scope applies to everything, the
    checks need no query.
    """

    def __init__(self, client: AnyClient, caller: Caller) -> None:
        self._client = client
        self._caller = caller
        self._grants = caller.grants

    def covers(self, level: Scope, workflow: str, tags: Mapping[str, str]) -> bool:
        """Return whether the caller has this level for a run of this workflow with these tags."""
        return self._grants.allows(level, workflow, tags)

    def check_some(self, level: Scope) -> None:
        """Raise Refused unless the caller has this level for at least some runs."""
        if not self._grants.reaches(level):
            raise self._refused(level)

    def check(self, level: Scope, workflow: str, tags: Mapping[str, str]) -> None:
        """Raise Refused unless the caller has this level for a run of this workflow with these tags."""
        if not self.covers(level, workflow, tags):
            raise self._refused(level, workflow)

    async def check_run(self, level: Scope, run_id: str) -> None:
        """Raise RunNotFound if the caller may not see a run. Raise Refused if it may see the run but does not have this
        level.
        """
        self.check_some(level)
        if self._grants.includes(level):
            return
        run = await self._client.runs.get(run_id)
        if run is None or not self.covers(Scope.READ, run.workflow, run.tags):
            raise RunNotFound(run_id)
        self.check(level, run.workflow, run.tags)

    async def check_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Raise Refused if the caller could no longer operate a run that has these tags."""
        if not self._grants.includes(Scope.OPERATE):
            self.check(Scope.OPERATE, (await self._found(run_id)).workflow, tags)

    async def check_task(self, level: Scope, task_id: str) -> None:
        """Check a task in the same way as `check_run` checks a run. A task is within reach if its run is. Raises
        TaskNotFound, Refused.
        """
        self.check_some(level)
        if self._grants.includes(level):
            return
        try:
            await self.check_run(level, (await self._client.tasks.get(task_id)).run_id)
        except RunNotFound:
            unknown = f"there is no task {task_id!r}; list the tasks with GET /tasks"
            raise TaskNotFound(unknown, task_id=task_id) from None

    async def check_artifact(self, level: Scope, artifact_id: str) -> None:
        """Check an artifact in the same way as `check_run` checks a run. An artifact is within reach if its run is.
        Raises ArtifactNotFound, Refused.
        """
        self.check_some(level)
        if self._grants.includes(level):
            return
        try:
            await self.check_run(level, (await self._client.artifacts.get(id=artifact_id)).run_id)
        except (RunNotFound, ArtifactNotFound):
            raise ArtifactNotFound(f"no artifact that was published has the id {artifact_id!r}") from None

    # Ids and keys. A caller whose scopes apply only to some runs may choose only ids and keys that are separate from
    # all others. So it cannot find out, by trying, which ids and keys others have used. It also cannot take them first.

    def key_scope(self, workflow: str, tags: Mapping[str, str]) -> str | None:
        """Return the text of the scope to which the caller's keys belong, for a run of this workflow with these tags.
        Return None if the caller's scope applies to everything.
        """
        return next(iter(self._key_scopes(workflow, tags)), None)

    async def key_scope_of(self, run_id: str) -> str | None:
        """Return the text of the scope to which the caller's keys belong, for an existing run. Return None if the
        caller's scope applies to everything.
        """
        if self._grants.includes(Scope.OPERATE):
            return None
        run = await self._found(run_id)
        return self.key_scope(run.workflow, run.tags)

    def check_id(self, run_id: str, workflow: str, tags: Mapping[str, str]) -> None:
        """Raise Refused unless the caller may choose this id for a run of this workflow with these tags."""
        own = [f"{scope}/" for scope in self._key_scopes(workflow, tags)]
        if own and not any(run_id.startswith(start) and run_id != start for start in own):
            raise Refused(
                "forbidden",
                f"the token {self._caller.name!r} is for some runs only, so ids that it chooses must begin with"
                f" {own[0]!r}; or send an Idempotency-Key instead of an id",
            )

    def _key_scopes(self, workflow: str, tags: Mapping[str, str]) -> list[str]:
        parts = self._grants.parts(Scope.OPERATE)
        return sorted((_key_scope(part) for part in parts if part.covers(workflow, tags)), reverse=True)

    async def started(self, starting: Awaitable[str], run_id: str | None) -> RunView:
        """Wait for a start, and return the run that the caller has started. Raises the same errors as `start`, but they
        reveal nothing about runs and workflows that are out of reach.
        """
        if self._grants.includes(Scope.READ):
            return await self._found(await starting)
        try:
            view = await self._found(await starting)
        except UnknownWorkflow:
            raise UnknownWorkflow("no engine that is alive has this workflow") from None
        except RunExists:
            there = None if run_id is None else await self._client.runs.get(run_id)
            if there is not None and self.covers(Scope.READ, there.workflow, there.tags):
                raise
            raise _taken(run_id or "") from None
        if not self.covers(Scope.READ, view.workflow, view.tags):
            raise _taken(view.id)
        return view

    async def _found(self, run_id: str) -> RunView:
        view = await self._client.runs.get(run_id)
        if view is None:
            raise RunNotFound(run_id)
        return view

    # Lists.

    async def page(self, wanted: Wanted, limit: int, cursor: str | None = None) -> Page:
        """Return a page of the selected runs that the caller may see, newest first."""
        parts = self._grants.parts(Scope.READ)
        if self._grants.includes(Scope.READ):
            return await wanted.page(self._client, limit, cursor)
        found: dict[str, RunView] = {}
        is_more = False
        for part in parts:
            if (narrowed := _narrowed(wanted, part)) is not None:
                page = await narrowed.page(self._client, limit, cursor)
                found |= {run.id: run for run in page.runs}
                is_more |= page.cursor is not None
        runs = sorted(found.values(), key=lambda run: (run.created_at, run.id), reverse=True)
        is_more |= len(runs) > limit
        runs = runs[:limit]
        return Page(runs=runs, cursor=_cursor(runs[-1]) if runs and is_more else None)

    @property
    def within(self) -> Within | None:
        """Return the runs that the caller may see, for queries of the store. Return None if the caller may see all
        runs.
        """
        if self._grants.includes(Scope.READ):
            return None
        parts = self._grants.parts(Scope.READ)
        return Within(
            workflows=tuple(part.workflow for part in parts if part.workflow is not None),
            tags=tuple(part.tag for part in parts if part.tag is not None),
        )

    def knows(self, workflow: str) -> bool:
        """Return whether the caller may know that a workflow exists."""
        if self._grants.includes(Scope.READ):
            return True
        return any(part.workflow == workflow for part in self._grants.parts(Scope.READ))

    def _refused(self, level: Scope, workflow: str = "") -> Refused:
        which = f" for runs of {workflow!r} with these tags" if workflow else ""
        text = f"the token {self._caller.name!r} has the scope {self._grants}; this needs {level}{which}"
        return Refused("forbidden", text)


def _key_scope(part: Grant) -> str:
    """Return a scope as a text without slashes. No other scope has the same text."""
    if part.workflow is not None:
        return f"workflow={quote(part.workflow, safe='')}"
    assert part.tag is not None
    return f"tag={quote(part.tag[0], safe='')}={quote(part.tag[1], safe='')}"


def _narrowed(wanted: Wanted, part: Grant) -> Wanted | None:
    """Return the part of a selection that one scope covers. Return None if the scope covers no part."""
    if part.workflow is not None:
        return replace(wanted, workflow=part.workflow) if wanted.workflow in (None, part.workflow) else None
    assert part.tag is not None
    key, value = part.tag
    return replace(wanted, tags={**wanted.tags, key: value}) if wanted.tags.get(key, value) == value else None


def _cursor(run: RunView) -> str:
    return f"{(run.created_at - _EPOCH) // timedelta(microseconds=1)}:{run.id}"


def _taken(run_id: str) -> RunExists:
    return RunExists(f"the id {run_id!r} belongs to another run; use another id", run_id=run_id)


def reach_of(asking: Asking) -> Reach:
    """Return the reach of a request's caller."""
    return Reach(asking.app.state["client"], caller_of(asking))


# ---------------------------------------------------------------------------------------------------------------------
# Guards for routes whose path names a run, a task or an artifact.


async def reads_run(connection: Asking, _handler: BaseRouteHandler) -> None:
    await reach_of(connection).check_run(Scope.READ, connection.path_params["run_id"])


async def operates_run(connection: Asking, _handler: BaseRouteHandler) -> None:
    await reach_of(connection).check_run(Scope.OPERATE, connection.path_params["run_id"])


async def reads_task(connection: Asking, _handler: BaseRouteHandler) -> None:
    await reach_of(connection).check_task(Scope.READ, connection.path_params["task_id"])


async def operates_task(connection: Asking, _handler: BaseRouteHandler) -> None:
    await reach_of(connection).check_task(Scope.OPERATE, connection.path_params["task_id"])


async def reads_artifact(connection: Asking, _handler: BaseRouteHandler) -> None:
    await reach_of(connection).check_artifact(Scope.READ, connection.path_params["artifact_id"])


def reads_some(connection: Asking, _handler: BaseRouteHandler) -> None:
    """Guard a handler. The handler itself leaves out everything that is out of the caller's reach."""
    reach_of(connection).check_some(Scope.READ)


def operates_some(connection: Asking, _handler: BaseRouteHandler) -> None:
    """Guard a handler. The handler itself checks whether the request is within the caller's reach."""
    reach_of(connection).check_some(Scope.OPERATE)


__all__ = [
    "Reach",
    "operates_run",
    "operates_some",
    "operates_task",
    "reach_of",
    "reads_artifact",
    "reads_run",
    "reads_some",
    "reads_task",
]
