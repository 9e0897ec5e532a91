"""Lists of runs: filters and pages."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.kernel.runs import Hold, Run
from perdure.kernel.status import Status
from perdure.ports import RunFilter
from perdure.testing.conformance.base import Author, Rules, a_run, insert, update

_STATUSES = list(Status)


def _runs() -> list[Run]:
    """Return a hundred runs of all kinds. Several of them were created at the same time."""
    return [
        a_run(
            f"r-{(i * 37) % 100:02}",
            created_at=1000 + i // 3,
            workflow=f"w{i % 2}",
            status=_STATUSES[i % len(_STATUSES)],
            parent_id=f"p{i % 4}" if i % 3 else None,
            hold=Hold(kind=("paused", "blocked")[i % 2], reason="r") if i % 7 == 0 else None,
            tags={"parity": str(i % 2), "third": str(i % 3)} if i % 5 else {},
        )
        for i in range(100)
    ]


FILTERS: list[dict[str, Any]] = [
    {},
    {"workflow": "w1"},
    {"workflow": "unknown"},
    {"statuses": (Status.RUNNING,)},
    {"statuses": (Status.SUCCEEDED,)},
    {"statuses": (Status.RUNNING, Status.CREATED)},
    {"statuses": (Status.FAILED, Status.CANCELLED)},
    {"statuses": (Status.RUNNING, Status.SUCCEEDED, Status.FAILED)},
    {"statuses": ("unknown",)},
    {"hold": "paused"},
    {"hold": "blocked", "workflow": "w1"},
    {"parent_id": "p1"},
    {"parent_id": "unknown"},
    {"tags": {"parity": "1"}},
    {"tags": {"parity": "1", "third": "2"}},
    {"tags": {"parity": "1", "third": "unknown"}},
    {"tags": {"unknown": "1"}},
    {"created_from": 1010},
    {"created_before": 1010},
    {"created_from": 1005, "created_before": 1020, "statuses": (Status.RUNNING, Status.SUSPENDED)},
    {"created_from": 1020, "created_before": 1005},
    {"parent_id": "p1", "tags": {"third": "2"}, "workflow": "w1"},
    {"parent_id": "p1", "hold": "blocked", "tags": {"parity": "1"}, "created_from": 1001},
    {"tags": {"third": "1"}, "statuses": (Status.FAILED,), "created_before": 1030},
]


def _expected(runs: list[Run], wanted: RunFilter) -> list[Run]:
    """Return the runs that match a filter, computed from the definition of the filter."""
    found = [
        run
        for run in runs
        if (wanted.workflow is None or run.workflow == wanted.workflow)
        and (not wanted.statuses or run.status in wanted.statuses)
        and (wanted.hold is None or (run.hold is not None and run.hold.kind == wanted.hold))
        and (wanted.parent_id is None or run.parent_id == wanted.parent_id)
        and all(run.tags.get(key) == value for key, value in wanted.tags.items())
        and (wanted.created_from is None or wanted.created_from <= run.created_at)
        and (wanted.created_before is None or run.created_at < wanted.created_before)
    ]
    return sorted(found, key=lambda run: (run.created_at, run.id), reverse=True)


async def _pages(author: Author, limit: int, **fields: Any) -> list[list[Run]]:
    pages: list[list[Run]] = []
    after: tuple[int, str] | None = None
    while page := await author.store.list(RunFilter(**fields, after=after, limit=limit)):
        pages.append(page)
        after = (page[-1].created_at, page[-1].id)
    return pages


class ListingRules(Rules):
    async def test_filters_newest_first_in_one_page_and_in_many(self) -> None:
        async with self.author() as author:
            runs = _runs()
            await author.commit(*map(insert, runs))
            for fields in FILTERS:
                expected = _expected(runs, RunFilter(**fields))
                assert await author.store.list(RunFilter(**fields)) == expected, fields
                pages = await _pages(author, 4, **fields)
                assert [run for page in pages for run in page] == expected, fields
                assert all(len(page) == 4 for page in pages[:-1]), fields

    async def test_a_count_is_as_many_as_a_listing_has_up_to_its_limit(self) -> None:
        async with self.author() as author:
            runs = _runs()
            await author.commit(*map(insert, runs))
            for fields in FILTERS:
                expected = _expected(runs, RunFilter(**fields))
                assert await author.store.count(RunFilter(**fields, limit=1000)) == len(expected), fields
                for limit in (-1, 0, 1, 5):
                    bounded = min(max(0, limit), len(expected))
                    assert await author.store.count(RunFilter(**fields, limit=limit)) == bounded, (fields, limit)
                if len(expected) > 3:
                    after = (expected[2].created_at, expected[2].id)
                    assert await author.store.count(RunFilter(**fields, after=after)) == len(expected) - 3, fields

    async def test_runs_are_counted_by_status_and_time_up_to_a_limit(self) -> None:
        async with self.author() as author:
            runs = _runs()
            await author.commit(*map(insert, runs))
            times = [(0, 1000), (1000, 1001), (1001, 1020), (1020, 1020), (1020, 1010), (1001, 2**62)]
            cells = [(str(status), *time) for status in (*_STATUSES, "none") for time in times]
            counted = [sum(run.status == s and b <= run.created_at < e for run in runs) for s, b, e in cells]
            assert await author.store.tally(cells, 1000) == counted
            assert await author.store.tally(cells, 2) == [min(2, count) for count in counted]
            assert max(counted) > 2
            assert await author.store.tally([], 2) == []

    async def test_pages_are_stable_while_runs_are_started(self) -> None:
        async with self.author() as author:
            runs = _runs()
            await author.commit(*map(insert, runs))
            first = await author.store.list(RunFilter(limit=30))
            late = [a_run(f"late-{i}", created_at=5000 + i) for i in range(10)]
            await author.commit(*map(insert, late))
            rest = await author.store.list(RunFilter(limit=1000, after=(first[-1].created_at, first[-1].id)))
            assert first + rest == _expected(runs, RunFilter())

    @pytest.mark.parametrize("limit", [0, -1])
    async def test_a_limit_of_nothing_lists_nothing(self, limit: int) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()))
            assert await author.store.list(RunFilter(limit=limit)) == []

    async def test_a_run_is_found_by_the_tags_it_has_now(self) -> None:
        async with self.author() as author:
            run = a_run(tags={"a": "1", "b": "1"})
            await author.commit(insert(run), insert(a_run("r-2", tags={"a": "1"})))
            write = update(run, tags={"a": "2", "b": "1", "c": "1"})
            await author.commit(write)

            async def found(**tags: str) -> list[str]:
                return [run.id for run in await author.store.list(RunFilter(tags=tags))]

            assert await found(a="1") == ["r-2"]
            assert await found(a="2", b="1", c="1") == ["r-1"]
            await author.commit(update(write.run, tags={}))
            assert await found(b="1") == []
            assert await found(a="1") == ["r-2"]

    @pytest.mark.parametrize("text", ["", "ü", 'a"b', "a.b[0]", "$", "'", "\\", "\n", "𝕌", "\u2028", "1"])
    async def test_odd_tags_are_found(self, text: str) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run(tags={text: text, "k": "v"})), insert(a_run("r-2", tags={"k": "v"})))
            assert await author.store.list(RunFilter(tags={text: text})) == [a_run(tags={text: text, "k": "v"})]
            assert await author.store.list(RunFilter(tags={"k": "v", text: text})) == [
                a_run(tags={text: text, "k": "v"})
            ]
            assert await author.store.list(RunFilter(tags={text: f"{text}x"})) == []
