"""`engine.runs`: read runs, list and count them, and make the same change to many runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.api.run_changes import cancel_run, pause_run, resume_run, retry_run
from perdure.api.stranded_runs import with_stranded
from perdure.api.waits import TimerView, timers_of
from perdure.coordinator.call_spans import whole_calls
from perdure.errors import ConcurrentModification, InvalidArguments, Misuse, RunFinished, RunNotFound, RunNotRetryable
from perdure.kernel.status import FINISHED, Status
from perdure.ports import RunFilter
from perdure.session import Session
from perdure.values.arguments import check_fields, checked
from perdure.values.checks import (
    checked_limit,
    checked_option,
    checked_tags,
    checked_texts,
    checked_time,
    checked_times,
)
from perdure.views import Page, RunView, from_cursor, run_view, to_cursor

_NEVER: Final = 2**62
_COUNT_MAX: Final = 10_000_000
_PAGE: Final = 200  # how many runs are changed at once
_OPEN: Final = tuple(status for status in Status if status not in FINISHED)

Timers = list[TimerView]  # inside the class, the name `list` means the method
Counts = list[dict[str, int]]
RunIds = list[str]


class RunSelection(Struct, frozen=True, kw_only=True):
    """A selection of runs.

    A run is selected if it matches all fields that are set. Without fields, all runs are selected.
    """

    workflow: str | None = None
    status: str | Sequence[str] = ()
    hold: str | None = None
    parent: str | None = None
    tags: Mapping[str, str] | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def to_filter(self) -> RunFilter:
        """Return the filter that a store takes. Raises InvalidArguments, Misuse."""
        for argument, text in (("workflow", self.workflow), ("hold", self.hold), ("parent", self.parent)):
            checked_option(text, argument)
        statuses = (self.status,) if isinstance(self.status, str) else tuple(checked_texts(self.status, "status"))
        if unknown := set(statuses) - set(Status):
            raise Misuse(f"no such status: {', '.join(sorted(unknown))}; use one of {', '.join(Status)}")
        return RunFilter(
            workflow=self.workflow,
            statuses=statuses,
            hold=self.hold,
            parent_id=self.parent,
            tags=checked_tags(self.tags),
            created_from=checked_time(self.created_from, "created_from"),
            created_before=checked_time(self.created_before, "created_before"),
        )


EVERYTHING: Final = RunSelection()


class BulkReport(Struct, frozen=True, kw_only=True):
    """The result of a change of many runs.

    It has the ids of the changed runs, and the refused runs, each with the reason for the refusal. In a dry run, it has
    the ids of the runs that would be changed.
    """

    changed: list[str]
    refused: dict[str, str]
    dry_run: bool


@whole_calls()
@checked(own=("ids",), constructor=False)
class Runs:
    """All runs in the store, on all engines."""

    def __init__(self, session: Session) -> None:
        self._session = session

    # Reading.

    async def get(self, id: str) -> RunView | None:
        """Return a run with its payloads, or None if no run has this id."""
        return (await self.get_many([id])).get(id)

    async def get_many(self, ids: Sequence[str]) -> dict[str, RunView]:
        """Return runs by their ids, in one query. Ids without a run are left out."""
        if isinstance(ids, str):
            raise InvalidArguments(f"get_many() takes a list of ids; for the one run {ids!r} use get()")
        wanted = checked_texts(ids, "ids", "a run's id")
        self._session.check_open()
        if not wanted:
            return {}
        found = await self._session.caller_store.get(wanted)
        views = [run_view(stored.run, stored, self._session.codec) for stored in found.values()]
        return {view.id: view for view in await with_stranded(self._session, views)}

    async def list(
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
        """Return a page of runs, newest first, without payloads. Pass its `cursor` to get the next page."""
        checked_limit(limit)
        selection = RunSelection(
            workflow=workflow,
            status=status,
            hold=hold,
            parent=parent,
            tags=tags,
            created_from=created_from,
            created_before=created_before,
        )
        self._session.check_open()
        return await self._page(selection.to_filter(), limit, cursor)

    async def _page(self, wanted: RunFilter, limit: int, cursor: str | None) -> Page:
        after = None if cursor is None else from_cursor(cursor)
        found = await self._session.caller_store.list(replace(wanted, after=after, limit=limit + 1))
        more = len(found) > limit
        views = await with_stranded(self._session, [run_view(run) for run in found[:limit]])
        return Page(runs=views, cursor=to_cursor(found[limit - 1]) if more else None)

    async def count(self, selection: RunSelection = EVERYTHING, *, limit: int = 10_000) -> int:
        """Return how many runs are selected. Counting stops at `limit`, so that it never takes long."""
        checked_limit(limit, _COUNT_MAX)
        self._session.check_open()
        return await self._session.caller_store.count(replace(selection.to_filter(), limit=limit))

    async def tally(
        self, times: Sequence[datetime] = (), *, statuses: Sequence[str] = tuple(Status), limit: int = 1_000
    ) -> Counts:
        """Return the number of runs by status, for each span from one of the `times` to the next.

        A run belongs to the span in which it was started. Without times, there is one span for all runs. For each
        status, at most `limit` runs are counted in each span.
        """
        self._session.check_open()
        at = checked_times(times, "times") or [0, _NEVER]
        statuses = checked_texts(statuses, "statuses")
        checked_limit(limit, _COUNT_MAX)
        spans = [*pairwise(at)]
        cells = [(str(status), begin, end) for begin, end in spans for status in statuses]
        counts = iter(await self._session.caller_store.tally(cells, limit))
        return [{str(status): next(counts) for status in statuses} for _ in spans]

    async def timers(self, ids: Sequence[str]) -> Timers:
        """Return the timers of these runs that have fired, in no particular order.

        Unknown ids are ignored. This reads the runs' journals, so pass a few hundred ids at most.
        """
        return await timers_of(self._session, ids)

    # Changing many runs.

    async def cancel(
        self, selection: RunSelection, *, reason: str = "", dry_run: bool = False, actor: str = "api"
    ) -> BulkReport:
        """Cancel all selected runs that have not ended, as `run.cancel()` does.

        With `dry_run`, only report which runs would be cancelled.

        Runs are changed in bounded batches. If this process dies during the call, only some of the runs are cancelled;
        then call this again. Runs that are started during the call may be missed.
        """
        return await self._change(
            selection,
            _OPEN,
            lambda run_id: cancel_run(self._session, run_id, reason=reason, actor=actor),
            "it has ended, or was cancelled before",
            dry_run,
        )

    async def pause(
        self, selection: RunSelection, *, reason: str = "", dry_run: bool = False, actor: str = "api"
    ) -> BulkReport:
        """Pause all selected runs that have not ended and are not held, as `run.pause()` does.

        `dry_run` and crashes work as for `cancel`.
        """
        return await self._change(
            selection,
            _OPEN,
            lambda run_id: pause_run(self._session, run_id, expected_version=None, reason=reason, actor=actor),
            "it is held already",
            dry_run,
            held=False,
        )

    async def resume(self, selection: RunSelection, *, dry_run: bool = False, actor: str = "api") -> BulkReport:
        """Resume all selected runs that are held, as `run.resume()` does.

        `dry_run` and crashes work as for `cancel`.
        """
        return await self._change(
            selection,
            _OPEN,
            lambda run_id: resume_run(self._session, run_id, expected_version=None, actor=actor),
            "it is not held",
            dry_run,
            held=True,
        )

    async def retry(self, selection: RunSelection, *, dry_run: bool = False, actor: str = "api") -> BulkReport:
        """Retry all selected runs that have failed, as `run.retry()` does.

        `dry_run` and crashes work as for `cancel`.
        """

        async def retry(run_id: str) -> bool:
            await retry_run(self._session, run_id, expected_version=None, actor=actor)
            return True

        return await self._change(selection, (Status.FAILED,), retry, "", dry_run)

    async def _change(
        self,
        selection: RunSelection,
        statuses: tuple[Status, ...],
        change: Callable[[str], Awaitable[bool]],
        otherwise: str,
        dry_run: bool,
        *,
        held: bool | None = None,
    ) -> BulkReport:
        """Change the selected runs that are in one of these statuses. `held` limits the change to held runs, or to runs
        that are not held. `otherwise` is the reason that the report gives for a run that did not change.
        """
        changed: RunIds = []
        refused: dict[str, str] = {}

        async def change_one(run_id: str) -> None:
            try:
                done = await change(run_id)
            except (RunNotFound, RunFinished, RunNotRetryable, ConcurrentModification) as error:
                refused[run_id] = str(error)
            else:
                if done:
                    changed.append(run_id)
                else:
                    refused[run_id] = otherwise

        self._session.check_open(to_start=not dry_run)
        async for ids in self._selected(selection, statuses, held=held):
            if dry_run:
                changed += ids
            else:
                await asyncio.gather(*[change_one(run_id) for run_id in ids])
        return BulkReport(changed=changed, refused=refused, dry_run=dry_run)

    async def _selected(
        self, selection: RunSelection, statuses: tuple[Status, ...], *, held: bool | None
    ) -> AsyncIterator[RunIds]:
        """Return the ids of the selected runs that are in one of these statuses, in bounded batches."""
        wanted = selection.to_filter()
        among = tuple(status for status in wanted.statuses or statuses if status in statuses)
        if not among:
            return
        wanted = replace(wanted, statuses=among, limit=_PAGE)
        while page := await self._session.caller_store.list(wanted):
            yield [run.id for run in page if held in (None, run.hold is not None)]
            wanted = replace(wanted, after=(page[-1].created_at, page[-1].id))


__all__ = ["BulkReport", "RunSelection", "Runs"]
