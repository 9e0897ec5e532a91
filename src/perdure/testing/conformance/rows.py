"""Every row that is written must be read back unchanged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from perdure.errors import CommitConflict, PerdureError, RunNotFound
from perdure.kernel.runs import Hold, Outcome
from perdure.kernel.status import Status
from perdure.ports import ArtifactFilter, Journal, RunFilter, TaskFilter
from perdure.testing.conformance.base import Rules, a_run, a_wait, an_audit, an_entry, insert, update

ODD_TEXTS = [
    "",
    "0",
    " ",
    "'",
    '"',
    "\\",
    "%_?*",
    "ünïcödé",
    "𝕌\u202e\ufeff",
    "line\nline\r\ttab",
    "null",
    "{}",
    "0",
    "1e999",
]
LARGE = '"' + "lärge " * 20_000 + '"'
BORDERS = [8191, 8192, 8193]
INT64 = [-(2**63), -1, 0, 2**63 - 1]


class RecordRules(Rules):
    async def test_asking_for_nothing_and_for_the_unknown(self) -> None:
        async with self.opened() as store:
            assert await store.load([]) == {}
            assert await store.get([]) == {}
            assert await store.load(["unknown"]) == {}
            assert await store.get(["unknown"]) == {}
            assert await store.audit("unknown") == []
            assert await store.archived("unknown") == []
            with pytest.raises(RunNotFound) as caught:
                await store.journal("unknown")
            assert caught.value.run_id == "unknown"

    async def test_a_full_run_comes_back(self) -> None:
        async with self.author() as author:
            run = a_run(
                workflow_version="v2",
                model="graph",
                status=Status.ROLLING_BACK,
                version=3,
                revision=4,
                owner=author.id,
                claim=5,
                parent_id="p",
                tags={"a": "1", "b": "2"},
                hold=Hold(kind="blocked", reason="why", details="d", fingerprint="f", at=6),
                deadline=7,
                attempt=8,
                recoveries=9,
                created_at=11,
                started_at=77,
                updated_at=12,
                completed_at=13,
            )
            outcome = Outcome(output="1", failure="2")
            await author.commit(insert(run, "3", outcome))
            stored = (await author.store.get(["r-1", "unknown"]))["r-1"]
            assert (stored.run, stored.input, stored.outcome) == (run, "3", outcome)
            assert (await author.store.load(["r-1"]))["r-1"].run == run

    async def test_the_code_that_was_tried_comes_back_with_a_run_that_is_not_held(self) -> None:
        async with self.author() as author:
            run = a_run(owner=author.id, tried="f g")
            await author.commit(insert(run))
            assert (await author.store.load(["r-1"]))["r-1"].run == run
            await author.commit(update(run, tried="", updated_at=9))
            assert (await author.store.load(["r-1"]))["r-1"].run.tried == ""

    async def test_a_read_that_asks_for_what_no_store_can_hold_leaves_the_store_fit_to_write(self) -> None:
        async with self.author() as author:
            store: Any = author.store
            reads: list[Callable[[], Awaitable[Any]]] = [
                lambda: store.record("k", "n", 2**63),
                lambda: store.tasks(TaskFilter(after="\ud800")),
                lambda: store.artifacts(ArtifactFilter(name="\ud800")),
                lambda: store.events(name=5),
                lambda: store.dead_letters(after="nul\0"),
                lambda: store.list(RunFilter(workflow="\ud800")),
                lambda: store.load(["\ud800"]),
                lambda: store.stream("r", "s", after=2**64, limit=1),
            ]
            for read in reads:
                with suppress(PerdureError, UnicodeEncodeError):
                    await read()
                assert await author.store.list(RunFilter()) == []
            await author.commit(insert(a_run("after")))
            assert set(await author.store.get(["after"])) == {"after"}
            assert [run.id for run in await author.store.list(RunFilter())] == ["after"]

    async def test_many_runs_by_id_in_one_query(self) -> None:
        async with self.author() as author:
            ids = [f"r-{i}" for i in range(1500)]
            await author.commit(*(insert(a_run(run_id)) for run_id in ids))
            many = ids + [f"unknown-{i}" for i in range(40_000)]
            assert (await author.store.load(many)).keys() == set(ids)
            assert (await author.store.get(many)).keys() == set(ids)

    @pytest.mark.parametrize("text", ODD_TEXTS)
    async def test_odd_text_comes_back_everywhere(self, text: str) -> None:
        async with self.author() as author:
            run = a_run(f"r{text}", workflow=f"w{text}", tags={text: text, f"k{text}": "v"}, parent_id=text)
            entry = an_entry(run.id, position=text, name=text, value=text)
            failed = an_entry(run.id, 2, failure=text)
            wait = a_wait(run.id, text, name=text, failure=text, details=text)
            audit = an_audit(run.id, was=text, became=text, details=text)
            waits = {(run.id, text): wait}
            await author.commit(
                insert(run, text, Outcome(output=text)), journal=[entry, failed], audit=[audit], waits=waits
            )
            stored = (await author.store.get([run.id]))[run.id]
            assert (stored.run, stored.input, stored.outcome) == (run, text, Outcome(output=text))
            assert await author.store.journal(run.id) == (text, [entry, failed])
            assert (await author.store.load([run.id]))[run.id].waits == (wait,)
            assert await author.store.audit(run.id) == [audit]
            await author.commit(waits_dropped=[(run.id, text)])
            assert (await author.store.load([run.id]))[run.id].waits == ()

    @pytest.mark.parametrize("parent_id", [None, *ODD_TEXTS])
    async def test_a_run_that_begins_and_succeeds_comes_back(self, parent_id: str | None) -> None:
        text = parent_id or ""
        async with self.author() as author:
            begins = a_run(f"r{text}", owner=author.id, claim=1, started_at=99, parent_id=parent_id, bond=text)
            other = a_run("other", owner=author.id, claim=1, started_at=99, deadline=7)
            await author.commit(insert(begins, text), insert(other, "2"), audit=[an_audit(begins.id, was=parent_id)])
            loaded = await author.store.load([begins.id, other.id])
            assert [loaded[run.id].run for run in (begins, other)] == [begins, other]
            assert (await author.store.get([begins.id]))[begins.id].input == text
            assert [row.was for row in await author.store.audit(begins.id)] == [parent_id]
            ends = update(
                begins, outcome=Outcome(output=text), status=Status.SUCCEEDED, owner=None, updated_at=9, completed_at=9
            )
            fails = update(
                other, outcome=Outcome(failure=text), status=Status.FAILED, owner=None, updated_at=9, completed_at=9
            )
            await author.commit(ends, fails)
            stored = await author.store.get([begins.id, other.id])
            assert (stored[begins.id].run, stored[begins.id].outcome) == (ends.run, Outcome(output=text))
            assert (stored[other.id].run, stored[other.id].outcome) == (fails.run, Outcome(failure=text))
            with pytest.raises(CommitConflict):
                await author.commit(ends)

    @pytest.mark.parametrize("number", INT64)
    async def test_integers_of_64_bits_come_back(self, number: int) -> None:
        async with self.author() as author:
            run = a_run(created_at=number, updated_at=number, deadline=number, version=number)
            entry = an_entry(started_at=number, at=number)
            wait = a_wait(due_at=number, since=number)
            await author.commit(insert(run), journal=[entry], waits={("r-1", "1", 0): wait})
            loaded = (await author.store.load(["r-1"]))["r-1"]
            assert (loaded.run, loaded.waits) == (run, (wait,))
            assert (await author.store.journal("r-1"))[1] == [entry]

    async def test_entries_come_in_completion_order(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()), journal=[an_entry(seq=3), an_entry(seq=11), an_entry("r-2", 5)])
            await author.commit(journal=[an_entry(seq=2, failure="{}"), an_entry(seq=1)])
            expected = [an_entry(seq=1), an_entry(seq=2, failure="{}"), an_entry(seq=3), an_entry(seq=11)]
            assert await author.store.journal("r-1") == ('"in"', expected)

    async def test_entries_come_in_completion_order_though_the_clock_was_set_back(self) -> None:
        async with self.author() as author:
            entries = [an_entry(seq=seq, at=90 - seq) for seq in (1, 2, 3)]
            await author.commit(insert(a_run()), journal=entries)
            assert await author.store.journal("r-1") == ('"in"', entries)
            assert (await author.store.journals(["r-1"]))["r-1"].entries == entries

    async def test_several_journals_come_in_one_read(self) -> None:
        async with self.author() as author:
            entries = [an_entry(seq=2, value=LARGE), an_entry("r-2", 1), an_entry(seq=1, failure="{}")]
            await author.commit(
                insert(a_run(), LARGE), insert(a_run("r-2"), "2"), insert(a_run("r-3")), journal=entries
            )
            waits = {(run_id, "1", 0): a_wait(run_id) for run_id in ("r-2", "r-3")}
            await author.commit(waits=waits)
            assert await author.store.journals(["r-2", "unknown", "r-1"]) == {
                "r-1": Journal(LARGE, [entries[2], entries[0]]),
                "r-2": Journal("2", [entries[1]], (a_wait("r-2"),)),
            }
            assert await author.store.journals([]) == {}

    async def test_runs_come_with_their_journals_in_one_read(self) -> None:
        async with self.author() as author:
            entries = [an_entry(seq=2, value=LARGE), an_entry(seq=1, failure="{}")]
            await author.commit(insert(a_run(), LARGE), insert(a_run("r-2"), "2"), insert(a_run("r-3")))
            await author.commit(journal=entries, waits={("r-2", "1", 0): a_wait("r-2")})
            ids = ["r-2", "unknown", "r-1"]
            whole = await author.store.load_whole(ids)
            assert {one: loaded for one, (loaded, _) in whole.items()} == await author.store.load(ids)
            assert {one: journal for one, (_, journal) in whole.items()} == {
                "r-1": Journal(LARGE, [entries[1], entries[0]]),
                "r-2": Journal("2", [], (a_wait("r-2"),)),
            }
            assert await author.store.load_whole([]) == {}

    async def test_a_retry_sets_entries_aside_and_their_numbers_are_free_again(self) -> None:
        async with self.author() as author:
            first = [an_entry(seq=seq, value=LARGE if seq in (2, 9, 10) else "1") for seq in range(1, 11)]
            await author.commit(insert(a_run()), insert(a_run("r-2")), journal=[*first, an_entry("r-2", 9)])
            await author.commit(archive=[("r-1", 9, 1)], journal=[an_entry(seq=9, failure=LARGE)])
            assert (await author.store.journal("r-1"))[1] == [*first[:8], an_entry(seq=9, failure=LARGE)]
            assert await author.store.archived("r-1") == [(1, first[8]), (1, first[9])]
            await author.commit(archive=[("r-1", 2, 2)])
            assert (await author.store.journal("r-1"))[1] == first[:1]
            aside = [(2, entry) for entry in first[1:8]] + [(2, an_entry(seq=9, failure=LARGE))]
            assert await author.store.archived("r-1") == [(1, first[8]), (1, first[9]), *aside]
            assert (await author.store.journal("r-2"))[1] == [an_entry("r-2", 9)]
            assert await author.store.archived("r-2") == []

    async def test_digests_come_back_from_the_journal_and_from_what_is_set_aside(self) -> None:
        entries = [
            an_entry(seq=1, digest="0d4cbb29"),
            an_entry(seq=2, digest="large", value=LARGE),
            an_entry(seq=3, digest="00000003", failure="{}", attempts=3),
            an_entry(seq=4, digest="00000004", kind="child"),
            an_entry(seq=5),
        ]
        async with self.author() as author:
            await author.commit(insert(a_run()), insert(a_run("r-2")), journal=entries[:2])
            waits = {("r-1", "9", 0): a_wait(position="9", kind="run", target="r-2", due_at=None, details="0d4cbb29")}
            await author.commit(journal=entries[2:], waits=waits)  # This batch is matched with the ends of runs.
            assert (await author.store.journal("r-1"))[1] == entries
            assert [wait.details for wait in (await author.store.load(["r-1"]))["r-1"].waits] == ["0d4cbb29"]
            await author.commit(archive=[("r-1", 2, 1)], journal=[an_entry(seq=2, digest="new")])
            assert (await author.store.journal("r-1"))[1] == [entries[0], an_entry(seq=2, digest="new")]
            assert await author.store.archived("r-1") == [(1, entry) for entry in entries[1:]]

    async def test_waits_are_put_replaced_dropped_and_cleared(self) -> None:
        async with self.author() as author:
            put = {("r-1", p): a_wait(position=p) for p in ("1", "2", "3")} | {("r-2", "1", 0): a_wait("r-2")}
            await author.commit(insert(a_run()), insert(a_run("r-2")), waits=put)
            retry = a_wait(position="1", kind="retry", due_at=None, attempts=2, failure="{}", since=4)
            await author.commit(waits_dropped=[("r-1", "2"), ("r-1", "unknown")], waits={("r-1", "1", 0): retry})
            loaded = await author.store.load(["r-1", "r-2"])
            assert loaded["r-1"].waits == (retry, a_wait(position="3"))
            assert loaded["r-2"].waits == (a_wait("r-2"),)
            await author.commit(waits_cleared=["r-1", "unknown"], waits={("r-1", "9", 0): a_wait(position="9")})
            loaded = await author.store.load(["r-1", "r-2"])
            assert loaded["r-1"].waits == (a_wait(position="9"),)
            assert loaded["r-2"].waits == (a_wait("r-2"),)

    @pytest.mark.parametrize("details", ["1", LARGE])
    async def test_a_heartbeat_takes_a_retrys_place_and_keeps_what_it_is_given(self, details: str) -> None:
        async with self.author() as author:
            retry = a_wait(kind="retry", attempts=1, failure="{}", since=4, details="0")
            await author.commit(insert(a_run()), waits={("r-1", "1", 0): retry})
            assert (await author.store.load(["r-1"]))["r-1"].waits == (retry,)
            beat = a_wait(kind="beat", due_at=None, attempts=1, failure="{}", since=4, details=details)
            for wait in (beat, retry, beat):
                await author.commit(waits={("r-1", "1", 0): wait})
                assert (await author.store.load(["r-1"]))["r-1"].waits == (wait,)
            await author.commit(waits_dropped=[("r-1", "1")])
            assert (await author.store.load(["r-1"]))["r-1"].waits == ()

    async def test_a_wait_dropped_and_put_in_one_batch_is_put(self) -> None:
        async with self.author() as author:
            put = {("r-1", "1", 0): a_wait()}
            await author.commit(insert(a_run()), waits_dropped=[("r-1", "1")], waits_cleared=["r-1"], waits=put)
            assert (await author.store.load(["r-1"]))["r-1"].waits == (a_wait(),)

    async def test_audit_rows_come_oldest_first(self) -> None:
        async with self.author() as author:
            rows = [an_audit(seq=seq, was=Status.RUNNING, became=Status.FAILED, details=str(seq)) for seq in (2, 10, 1)]
            await author.commit(insert(a_run()), audit=rows[:2])
            await author.commit(audit=rows[2:])
            assert await author.store.audit("r-1") == [rows[2], rows[0], rows[1]]

    @pytest.mark.parametrize("size", BORDERS)
    @pytest.mark.parametrize("letter", ["x", "ü", "𝕌"])
    async def test_payloads_of_any_size_come_back(self, letter: str, size: int) -> None:
        async with self.author() as author:
            text = letter * (size // len(letter.encode())) + "." * (size % len(letter.encode()))
            entries = [an_entry(value=text), an_entry(seq=2, failure=text)]
            await author.commit(insert(a_run(), text, Outcome(output=text, failure=text)), journal=entries)
            stored = (await author.store.get(["r-1"]))["r-1"]
            assert (stored.input, stored.outcome) == (text, Outcome(output=text, failure=text))
            assert await author.store.journal("r-1") == (text, entries)

    async def test_a_large_outcome_is_replaced_and_cleared(self) -> None:
        outcomes = [
            Outcome(output=LARGE),
            Outcome(failure=LARGE),
            Outcome(output="1"),
            Outcome(output=LARGE, failure=LARGE),
            Outcome(),
            Outcome(failure="2"),
        ]
        async with self.author() as author:
            run = a_run()
            await author.commit(insert(run, LARGE))
            for outcome in outcomes:
                write = update(run, outcome=outcome)
                await author.commit(write)
                run = write.run
                stored = (await author.store.get(["r-1"]))["r-1"]
                assert (stored.run, stored.input, stored.outcome) == (run, LARGE, outcome)

    async def test_a_large_input_is_replaced(self) -> None:
        async with self.author() as author:
            run = a_run()
            await author.commit(insert(run, LARGE, Outcome(output=LARGE)))
            for text in ("1", LARGE + " ", LARGE, "2"):
                write = update(run)
                write.input = text
                await author.commit(write)
                run = write.run
                stored = (await author.store.get(["r-1"]))["r-1"]
                assert (stored.input, stored.outcome) == (text, Outcome(output=LARGE))
