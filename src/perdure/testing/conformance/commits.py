"""Commits. They are applied wholly or not at all, in sequence, and only for an engine that is not fenced."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure.errors import CommitConflict, CommitRefused, Fenced
from perdure.kernel.batch import Committed, RunWrite
from perdure.kernel.rows import Mail
from perdure.kernel.runs import Hold, Outcome
from perdure.kernel.status import Status
from perdure.testing.conformance.base import Author, Rules, a_run, a_wait, an_audit, an_entry, insert, update

SURROGATE = "\ud800"

UNSTORABLE: dict[str, dict[str, Any]] = {
    "an entry that is there": {"journal": [an_entry(seq=1)]},
    "an entry twice": {"journal": [an_entry(seq=2), an_entry(seq=2)]},
    "an audit row that is there": {"audit": [an_audit(seq=1)]},
    "a lone surrogate in a value": {"journal": [an_entry(seq=2, value=f'"{SURROGATE}"')]},
    "a large value with a surrogate": {"journal": [an_entry(seq=2, value=SURROGATE * 100_000)]},
    "a lone surrogate in a wait": {"waits": {("r-1", "9", 0): a_wait(position="9", name=SURROGATE)}},
    "a lone surrogate in a heartbeat": {"waits": {("r-1", "9", 0): a_wait(position="9", details=SURROGATE)}},
    "an integer beyond 64 bits": {"journal": [an_entry(seq=2, at=2**63)]},
    "a reply with a surrogate": {"mail_done": {1: SURROGATE}},
}


async def _everything(author: Author) -> object:
    """Return everything that a batch can write, so that a test can compare it before and after a commit."""
    store = author.store
    return (
        await store.get(["r-1", "new"]),
        await store.load(["r-1"]),
        await store.journal("r-1"),
        await store.audit("r-1"),
        await store.mail(author.id, 10),
        await store.engines(),
    )


async def _prepare(author: Author) -> None:
    wait = {("r-1", "1", 0): a_wait()}
    await author.commit(insert(a_run(owner=author.id)), journal=[an_entry()], audit=[an_audit()], waits=wait)
    await author.store.leave_mail(Mail(run_id="r-1", sender="s", op="{}", at=1))


class CommitRules(Rules):
    async def test_what_was_decided_before_a_run_was_held_is_a_conflict_though_its_version_is_the_same(self) -> None:
        async with self.author() as author:
            run = a_run(version=1, revision=1)
            await author.commit(insert(run), audit=[an_audit(seq=1)])
            hold = Hold(kind="paused", reason="wait")
            await author.commit(update(run, version=1, revision=2, hold=hold), audit=[an_audit(seq=2)])
            with pytest.raises(CommitConflict) as caught:
                await author.commit(update(run, version=1, revision=2, tags={"a": "1"}), audit=[an_audit(seq=2)])
            assert caught.value.run_ids == {run.id}
            assert (await author.store.load([run.id]))[run.id].run.hold == hold

    async def test_a_batch_is_there_after_its_commit(self) -> None:
        async with self.author() as author:
            await _prepare(author)
            assert (await author.store.get(["r-1"]))["r-1"].run == a_run(owner=author.id)
            assert [engine.batch for engine in await author.store.engines()] == [1]

    async def test_an_empty_batch_advances_the_number(self) -> None:
        async with self.author() as author:
            await author.commit()
            await author.commit()
            assert [engine.batch for engine in await author.store.engines()] == [2]

    async def test_a_batch_outlives_its_store(self) -> None:
        async with self.author() as author:
            await _prepare(author)
        async with self.opened() as store:
            assert (await store.get(["r-1"]))["r-1"].input == '"in"'
            assert await store.journal("r-1") == ('"in"', [an_entry()])

    @pytest.mark.parametrize("what", UNSTORABLE)
    async def test_a_batch_with_one_bad_row_is_refused_and_writes_nothing(self, what: str) -> None:
        async with self.author() as author:
            await _prepare(author)
            before = await _everything(author)
            good: dict[str, Any] = {
                "journal": [an_entry(seq=7)],
                "waits_cleared": ["r-1"],
                "audit": [an_audit(seq=7)],
                "mail_done": {1: "done"},
            }
            for part, rows in UNSTORABLE[what].items():
                good[part] = [*good[part], *rows] if isinstance(rows, list) else rows
            with pytest.raises(CommitRefused):
                await author.commit(insert(a_run("new")), update(a_run(owner=author.id), attempt=7), **good)
            assert await _everything(author) == before
            await author.commit(insert(a_run("new")))

    async def test_a_new_run_without_input_is_refused(self) -> None:
        async with self.author() as author:
            with pytest.raises(CommitRefused):
                await author.commit(RunWrite(run=a_run(), expected_version=None))
            assert await author.store.load(["r-1"]) == {}

    async def test_an_id_that_is_taken_is_a_conflict_and_writes_nothing(self) -> None:
        async with self.author() as author:
            await _prepare(author)
            before = await _everything(author)
            with pytest.raises(CommitConflict) as caught:
                await author.commit(insert(a_run("new")), insert(a_run("r-1")), journal=[an_entry("new")])
            assert caught.value.run_ids == {"r-1"}
            assert await _everything(author) == before

    @pytest.mark.parametrize("wrong", [{"version": 2}, {"owner": None}, {"owner": "e-2"}, {"run_id": "unknown"}])
    async def test_a_run_not_as_expected_is_a_conflict_and_writes_nothing(self, wrong: dict[str, Any]) -> None:
        async with self.author() as author:
            await _prepare(author)
            await author.commit(insert(a_run("r-2", owner=author.id)))
            before = await _everything(author)
            expected = a_run(**{"owner": author.id, **wrong})
            outcome = Outcome(output="1")
            ends: dict[str, Any] = {"status": Status.SUCCEEDED, "owner": None, "updated_at": 9, "completed_at": 9}
            for write in (
                update(expected),
                update(expected, outcome=outcome),
                update(expected, deadline=7),
                update(expected, outcome=outcome, deadline=7),
                update(expected, outcome=outcome, **ends),
            ):
                with pytest.raises(CommitConflict) as caught:
                    await author.commit(insert(a_run("new")), update(a_run("r-2", owner=author.id)), write)
                assert caught.value.run_ids == {expected.id}
                assert await _everything(author) == before

    async def test_all_conflicts_are_told_at_once(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run("a")), insert(a_run("b")))
            with pytest.raises(CommitConflict) as caught:
                await author.commit(
                    insert(a_run("a")), update(a_run("b", version=5)), update(a_run("c")), insert(a_run("d"))
                )
            assert caught.value.run_ids == {"a", "b", "c"}

    async def test_an_unowned_run_is_expected_as_such(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run(owner=None)))
            await author.commit(update(a_run(owner=None), owner=author.id))
            assert (await author.store.load(["r-1"]))["r-1"].run.owner == author.id

    async def test_an_update_writes_what_can_change(self) -> None:
        async with self.author() as author:
            await _prepare(author)
            write = update(
                a_run(owner=author.id),
                status=Status.SUSPENDED,
                workflow_version="2",
                revision=3,
                claim=4,
                tags={"k": "v"},
                deadline=5,
                attempt=6,
                recoveries=7,
                started_at=77,
                updated_at=9,
                completed_at=10,
            )
            await author.commit(write)
            stored = (await author.store.get(["r-1"]))["r-1"]
            assert stored.run == write.run
            assert (stored.input, stored.outcome) == ('"in"', Outcome())

    async def test_where_a_run_came_from_never_changes(self) -> None:
        async with self.author() as author:
            await _prepare(author)
            moved: dict[str, Any] = {"workflow": "other", "model": "graph", "parent_id": "p", "created_at": 1}
            await author.commit(update(a_run(owner=author.id), **moved))
            assert (await author.store.load(["r-1"]))["r-1"].run == a_run(owner=author.id, version=2)

    async def test_an_outcome_stays_until_another_is_given(self) -> None:
        async with self.author() as author:
            first = update(a_run(), outcome=Outcome(failure='{"type": "a:B"}'))
            await author.commit(insert(a_run()))
            await author.commit(first)
            second = update(first.run)
            await author.commit(second)
            assert (await author.store.get(["r-1"]))["r-1"].outcome == first.outcome
            await author.commit(update(second.run, outcome=Outcome(output="1")))
            assert (await author.store.get(["r-1"]))["r-1"].outcome == Outcome(output="1")

    async def test_an_update_may_replace_the_input(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run(), "1"))
            await author.commit(msgspec.structs.replace(update(a_run()), input="2"))
            assert (await author.store.journal("r-1"))[0] == "2"

    async def test_a_batch_sent_again_is_not_written_again(self) -> None:
        async with self.author() as author:
            batch = author.batch(insert(a_run()), journal=[an_entry()], audit=[an_audit()])
            await author.store.commit(batch)
            before = await _everything(author)
            await author.store.commit(batch)
            assert await _everything(author) == before

    async def test_a_batch_that_landed_is_known_as_such_even_by_a_dead_engine(self) -> None:
        async with self.author() as author:
            batch = author.batch(insert(a_run()))
            await author.store.commit(batch)
            await author.store.retire(author.id)
            await author.store.commit(batch)

    @pytest.mark.parametrize("number", [-1, 0, 2, 5])
    async def test_a_number_out_of_sequence_is_fenced(self, number: int) -> None:
        async with self.author() as author:
            for _ in range(3):
                await author.commit()
            author.number = number - 1
            with pytest.raises(Fenced):
                await author.commit(insert(a_run()))
            assert await author.store.load(["r-1"]) == {}

    async def test_a_dead_engine_is_fenced(self) -> None:
        async with self.author() as author:
            await author.store.retire(author.id)
            with pytest.raises(Fenced):
                await author.commit(insert(a_run()))
            assert await author.store.load(["r-1"]) == {}

    async def test_an_unknown_engine_or_epoch_is_fenced(self) -> None:
        async with self.author() as author:
            for change in ({"engine_id": "nobody"}, {"epoch": author.engine.epoch + 1}):
                with pytest.raises(Fenced):
                    await author.store.commit(msgspec.structs.replace(author.batch(), **change))

    async def test_more_rows_than_fit_into_one_statement(self) -> None:
        async with self.author() as author:
            runs = [a_run(f"r-{i}", owner=author.id) for i in range(333)]
            entries = [an_entry(run.id, seq) for run in runs for seq in (1, 2, 3)]
            waits = {(run.id, "1", 0): a_wait(run.id) for run in runs}
            audit = [an_audit(run.id) for run in runs]
            await author.commit(*map(insert, runs), journal=entries, waits=waits, audit=audit)
            changes = [update(run, status=Status.SUCCEEDED, owner=None, outcome=Outcome(output="1")) for run in runs]
            dropped = [(run.id, "1") for run in runs[:100]]
            await author.commit(*changes, waits_dropped=dropped, waits_cleared=[run.id for run in runs[200:]])
            loaded = await author.store.load([run.id for run in runs])
            assert [loaded[write.run.id].run for write in changes] == [write.run for write in changes]
            assert [len(loaded[run.id].waits) for run in runs] == [0] * 100 + [1] * 100 + [0] * 133
            for run in runs[::50]:
                assert (await author.store.journal(run.id))[1] == [an_entry(run.id, seq) for seq in (1, 2, 3)]

    async def test_engines_that_share_a_database_commit_at_the_same_time(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:

            async def work(author: Author) -> None:
                for i in range(20):
                    await author.commit(insert(a_run(f"{author.id}-{i}", owner=author.id)))

            await asyncio.gather(work(one), work(other))
            ids = [f"{author.id}-{i}" for author in (one, other) for i in range(20)]
            for author in (one, other):
                assert len(await author.store.load(ids)) == 40

    async def test_of_two_engines_that_start_a_run_with_one_id_one_wins(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            ends = await asyncio.gather(
                *(author.commit(insert(a_run(owner=author.id))) for author in (one, other)), return_exceptions=True
            )
            (winner,) = [author for author, end in zip((one, other), ends, strict=True) if isinstance(end, Committed)]
            assert [type(end) for end in ends if not isinstance(end, Committed)] == [CommitConflict]
            assert (await other.store.load(["r-1"]))["r-1"].run.owner == winner.id

    async def test_of_two_engines_that_change_a_run_that_nobody_owns_one_is_told_of_a_conflict(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as two:
            run = a_run()
            await one.commit(insert(run), audit=[an_audit(seq=1)])
            for seq in range(2, 12):
                changes = [
                    author.commit(
                        update(run, version=1, revision=seq, tags={"by": author.id}), audit=[an_audit(seq=seq)]
                    )
                    for author in (one, two)
                ]
                outcomes = await asyncio.gather(*changes, return_exceptions=True)
                (lost,) = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
                assert isinstance(lost, CommitConflict)
                assert lost.run_ids == {"r-1"}
                run = (await one.store.load(["r-1"]))["r-1"].run
            assert [row.seq for row in await one.store.audit("r-1")] == [*range(1, 12)]
