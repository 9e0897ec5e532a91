"""Transactions of steps, and the results that they stage. Stores without transactions for steps must refuse them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from perdure.errors import CommitConflict, Fenced, Misuse, OutcomeUnknown, StoreBusy
from perdure.kernel.rows import Staged
from perdure.kernel.runs import Hold, Run
from perdure.kernel.status import Status
from perdure.ports import StepPlace, Store
from perdure.testing.conformance.base import Author, Rules, a_run, a_wait, an_entry, insert, update
from perdure.testing.conformance.events import ended


class Failed(Exception):
    """The error that a body raises."""


class Notes:
    """A table of the user in the store's database. It has a name of its own."""

    def __init__(self, author: Author) -> None:
        self.store = author.store
        self.author = author
        self.name = f"notes_{uuid4().hex}"

    def body(
        self, place: StepPlace, *statements: str, error: BaseException | None = None, staged: Staged | None = None
    ) -> Callable[[Any], Any]:
        """Return a body that executes these statements, and then ends. In the statements, `notes` is replaced by the
        name of the table."""
        texts = [statement.replace("notes", self.name) for statement in statements]
        result = staged_at(place) if staged is None else staged

        def plain(connection: Any) -> Staged:
            for text in texts:
                connection.execute(text)
            if error is not None:
                raise error
            return result

        async def awaited(connection: Any) -> Staged:
            for text in texts:
                await connection.execute(text)
            if error is not None:
                raise error
            return result

        return plain if self.store.transacts == "plain" else awaited

    async def numbers(self) -> list[int]:
        """Return the numbers in the table. They are read in a transaction whose result is never staged."""
        found: list[int] = []
        run = a_run(f"reader-{uuid4().hex}", owner=self.author.id, claim=1)
        await self.author.commit(insert(run))
        text = f"select number from {self.name} order by number"  # noqa: S608 - its own name

        def plain(connection: Any) -> Staged:
            found.extend(number for (number,) in connection.execute(text))
            raise Failed

        async def awaited(connection: Any) -> Staged:
            found.extend(number for (number,) in await connection.fetch(text))
            raise Failed

        with pytest.raises(Failed):
            await self.store.transact(place_of(self.author, run), plain if self.store.transacts == "plain" else awaited)
        return found


def place_of(author: Author, run: Run, position: str = "1", **others: Any) -> StepPlace:
    whose: dict[str, Any] = {"engine_id": author.id, "epoch": author.engine.epoch, "claim": run.claim}
    return StepPlace(run_id=run.id, position=position, **whose | others)


def staged_at(place: StepPlace, value: str = '"done"') -> Staged:
    return Staged(
        run_id=place.run_id, position=place.position, name="transfer", claim=place.claim, attempt=2, value=value,
        started_at=3, at=4,
    )  # fmt: skip


async def staged_for(store: Store, run_id: str) -> Sequence[Staged]:
    return (await store.journals([run_id]))[run_id].staged


CREATE = "create table notes (number integer unique)"


class StagingRules(Rules):
    async def _began(self, author: Author, run_id: str = "r-1", **fields: Any) -> Run:
        run = a_run(run_id, **{"owner": author.id, "claim": 1, **fields})
        await author.commit(insert(run))
        return run

    async def _noted(self, author: Author) -> tuple[Notes, Run]:
        """Return the table, and a run whose first step has created the table and staged its result."""
        notes, run = Notes(author), await self._began(author)
        place = place_of(author, run)
        assert await author.store.transact(place, notes.body(place, CREATE)) == staged_at(place)
        return notes, run

    async def test_a_store_without_transactions_says_so(self) -> None:
        async with self.author() as author:
            if author.store.transacts == "no":
                run = await self._began(author)
                with pytest.raises(Misuse, match="no transactions"):
                    await author.store.transact(place_of(author, run), lambda _: None)

    async def test_what_a_body_writes_and_what_it_comes_to_are_committed_together(self) -> None:
        async with self.author() as author:
            if author.store.transacts != "no":
                notes, run = await self._noted(author)
                place = place_of(author, run, "2")
                await author.store.transact(place, notes.body(place, "insert into notes values (7)"))
                assert await notes.numbers() == [7]
                first = place_of(author, run)
                assert [*await staged_for(author.store, "r-1")] == [staged_at(first), staged_at(place)]
                assert (await author.store.journals(["r-1"]))["r-1"].entries == []

    async def test_what_a_body_raises_rolls_all_back_and_comes_as_it_is(self) -> None:
        async with self.author() as author:
            if author.store.transacts != "no":
                notes, run = await self._noted(author)
                place, error = place_of(author, run, "2"), Failed("on purpose")
                with pytest.raises(Failed) as raised:
                    await author.store.transact(place, notes.body(place, "insert into notes values (7)", error=error))
                assert raised.value is error
                assert await notes.numbers() == []
                assert [staged.position for staged in await staged_for(author.store, "r-1")] == ["1"]

    async def test_what_a_body_writes_goes_if_what_it_comes_to_cannot_be_stored(self) -> None:
        async with self.author() as author:
            if author.store.transacts != "no":
                notes, run = await self._noted(author)
                place = place_of(author, run, "2")
                staged = replace(staged_at(place), at=2**70)
                with pytest.raises(Exception, match=r".*"):  # An engine checks what it stages: any error will do.
                    await author.store.transact(place, notes.body(place, "insert into notes values (7)", staged=staged))
                assert await notes.numbers() == []
                assert [one.position for one in await staged_for(author.store, "r-1")] == ["1"]

    async def test_an_error_of_the_database_in_a_body_is_the_bodys(self) -> None:
        async with self.author() as author:
            if author.store.transacts != "no":
                notes, run = await self._noted(author)
                place = place_of(author, run, "2")
                twice = notes.body(place, "insert into notes values (7)", "insert into notes values (7)")
                with pytest.raises(Exception, match=r"(?i)unique") as raised:
                    await author.store.transact(place, twice)
                assert not type(raised.value).__module__.startswith("perdure")
                assert await notes.numbers() == []

    @pytest.mark.parametrize("ends", ["with the error", "with one of its own"])
    async def test_a_failure_of_the_database_in_a_body_is_the_stores(self, ends: str) -> None:
        async with self.author() as author:
            if author.store.transacts != "no":
                assert self.fails_in_steps, "say how the database fails under a step: set `fails_in_steps`"
                notes, run = await self._noted(author)
                place = place_of(author, run, "2")
                doomed = self._doomed(notes, place, Failed("what the body makes of it") if "own" in ends else None)
                with pytest.raises((StoreBusy, OutcomeUnknown)):
                    await author.store.transact(place, doomed)
                again = notes.body(place, *self.works_again, "insert into notes values (8)")
                assert await author.store.transact(place, again) == staged_at(place)
                assert await notes.numbers() == [8]
                await author.commit(update(run, updated_at=200))

    def _doomed(self, notes: Notes, place: StepPlace, error: Exception | None) -> Callable[[Any], Any]:
        """Return a body that writes something and then makes the database fail."""
        write, fail = notes.body(place, "insert into notes values (7)"), notes.body(place, *self.fails_in_steps)

        def plain(connection: Any) -> Staged:
            write(connection)
            try:
                staged: Staged = fail(connection)
            except Exception as fault:
                raise error or fault from fault
            return staged

        async def awaited(connection: Any) -> Staged:
            await write(connection)
            try:
                staged: Staged = await fail(connection)
            except Exception as fault:
                raise error or fault from fault
            return staged

        return plain if notes.store.transacts == "plain" else awaited

    async def test_what_is_staged_is_found_instead_of_being_done_again(self) -> None:
        async with self.author() as author:
            if author.store.transacts != "no":
                notes, run = await self._noted(author)
                place = place_of(author, run, "2")
                note = notes.body(place, "insert into notes values (7)")
                assert await author.store.transact(place, note) == await author.store.transact(place, note)
                assert await notes.numbers() == [7]

    async def test_what_is_staged_is_there_for_whoever_takes_the_run_over(self) -> None:
        async with self.author("e-1") as first:
            if first.store.transacts == "no":
                return
            notes, run = await self._noted(first)
            place = place_of(first, run, "2")
            await first.store.transact(place, notes.body(place, "insert into notes values (7)"))
            await first.store.retire(first.id)
            async with self.author("e-2") as second:
                assert await second.claim() == ["r-1"]
                taken = place_of(second, run, "2", claim=2)
                again = Notes(second)
                again.name = notes.name
                found = await second.store.transact(taken, again.body(taken, "insert into notes values (8)"))
                assert found == staged_at(place)
                assert await again.numbers() == [7]

    async def test_a_step_of_a_run_that_is_not_the_engines_any_more_is_refused(self) -> None:
        async with self.author() as author:
            if author.store.transacts == "no":
                return
            notes, run = await self._noted(author)
            held = await self._began(author, "held", hold=Hold(kind="paused", reason="why"))
            other = await self._began(author, "other", owner="somebody")
            gone = await self._began(author, "gone")
            await author.commit(ended(gone))
            for place in (
                place_of(author, run, "2", claim=2),
                place_of(author, held),
                place_of(author, other),
                place_of(author, gone),
                place_of(author, a_run("unknown", claim=1)),
            ):
                with pytest.raises(CommitConflict):
                    await author.store.transact(place, notes.body(place, "insert into notes values (7)"))
            assert await notes.numbers() == []

    async def test_a_body_of_a_run_that_is_not_the_engines_any_more_never_begins(self) -> None:
        async with self.author("e-1") as first, self.author("e-2") as second:
            if first.store.transacts == "no":
                return
            begun: list[str] = []

            def plain(_: Any) -> Staged:
                begun.append("plain")
                raise Failed

            async def awaited(_: Any) -> Staged:
                begun.append("awaited")
                raise Failed

            body = plain if first.store.transacts == "plain" else awaited
            run = await self._began(first)
            gone = await self._began(first, "gone")
            await first.commit(ended(gone))
            for place in (place_of(first, run, claim=2), place_of(first, gone), place_of(second, run)):
                with pytest.raises(CommitConflict):
                    await first.store.transact(place, body)
            await second.store.retire(first.id)
            with pytest.raises(Fenced):
                await first.store.transact(place_of(first, run), body)
            assert begun == []

    async def test_a_step_whose_run_is_lost_while_its_body_runs_commits_nothing(self) -> None:
        """A store with one writer lets nothing happen meanwhile."""
        async with self.author("e-1") as first, self.author("e-2") as second:
            if first.store.transacts != "async":
                return
            notes, _ = await self._noted(first)
            claimed, gone, dead = [await self._began(first, name) for name in ("claimed", "gone", "dead")]

            async def lose(run: Run) -> None:
                if run is dead:
                    await second.store.retire(first.id)
                else:
                    await first.commit(update(run, claim=2) if run is claimed else ended(run))

            for run in (claimed, gone, dead):
                place = place_of(first, run)
                insert_note = notes.body(place, "insert into notes values (7)")

                async def body(connection: Any, run: Run = run, insert_note: Any = insert_note) -> Staged:
                    staged: Staged = await insert_note(connection)
                    await lose(run)
                    return staged

                with pytest.raises(Fenced if run is dead else CommitConflict):
                    await first.store.transact(place, body)
                assert [*await staged_for(second.store, run.id)] == []
            later = Notes(second)
            later.name = notes.name
            assert await later.numbers() == []

    async def test_a_dead_engine_commits_no_step(self) -> None:
        async with self.author("e-1") as first, self.author("e-2") as second:
            if first.store.transacts == "no":
                return
            notes, run = await self._noted(first)
            place = place_of(first, run, "2")
            await second.store.retire(first.id)
            with pytest.raises(Fenced):
                await first.store.transact(place, notes.body(place, "insert into notes values (7)"))
            later = Notes(second)
            later.name = notes.name
            assert await later.numbers() == []

    async def test_an_epoch_that_is_not_the_engines_is_refused(self) -> None:
        async with self.author() as author:
            if author.store.transacts != "no":
                notes, run = await self._noted(author)
                place = place_of(author, run, "2", epoch=author.engine.epoch + 1)
                with pytest.raises(Fenced):
                    await author.store.transact(place, notes.body(place, "insert into notes values (7)"))

    async def test_the_commit_that_drops_a_position_takes_what_is_staged_there(self) -> None:
        async with self.author() as author:
            if author.store.transacts != "no":
                _, run = await self._noted(author)
                await author.commit(
                    journal=[an_entry("r-1")],
                    waits_dropped=[("r-1", "1"), ("r-1", "9")],
                    waits={("r-1", "2", 0): a_wait("r-1", "2")},
                )
                assert [*await staged_for(author.store, run.id)] == []

    async def test_other_positions_and_other_runs_keep_theirs(self) -> None:
        async with self.author() as author:
            if author.store.transacts == "no":
                return
            notes, run = await self._noted(author)
            other = await self._began(author, "r-2")
            for place in (place_of(author, run, "2"), place_of(author, other, "1")):
                await author.store.transact(place, notes.body(place))
            await author.commit(waits_dropped=[("r-1", "1")])
            assert [staged.position for staged in await staged_for(author.store, "r-1")] == ["2"]
            await author.commit(waits_cleared=["r-1"])
            assert [*await staged_for(author.store, "r-1")] == []
            assert [staged.position for staged in await staged_for(author.store, "r-2")] == ["1"]

    async def test_a_run_that_hops_leaves_nothing_staged(self) -> None:
        async with self.author() as author:
            if author.store.transacts != "no":
                _, run = await self._noted(author)
                await author.commit(update(run, claim=2), continued=["r-1"])
                assert [*await staged_for(author.store, "r-1")] == []

    async def test_a_value_of_any_size_and_any_text_is_staged(self) -> None:
        async with self.author() as author:
            if author.store.transacts == "no":
                return
            run = await self._began(author)
            for position, value in (("1", f'"{"x" * 100_000}"'), ("2", '"ö \\u0000 🙂"')):
                place = place_of(author, run, position)
                staged = staged_at(place, value)

                def plain(_: Any, staged: Staged = staged) -> Staged:
                    return staged

                async def awaited(_: Any, staged: Staged = staged) -> Staged:
                    return staged

                await author.store.transact(place, plain if author.store.transacts == "plain" else awaited)
                assert staged in await staged_for(author.store, "r-1")

    async def test_many_steps_at_once_each_commit_their_own(self) -> None:
        async with self.author() as author:
            if author.store.transacts == "no":
                return
            notes, run = await self._noted(author)
            places = [place_of(author, run, str(number)) for number in range(2, 22)]
            bodies = [
                notes.body(place, " ".join(("insert into notes values (", place.position, ")"))) for place in places
            ]
            turns = zip(places * 2, bodies * 2, strict=True)  # each body runs twice
            await asyncio.gather(*[author.store.transact(place, body) for place, body in turns])
            assert await notes.numbers() == [*range(2, 22)]

    async def test_commits_go_on_while_steps_do(self) -> None:
        async with self.author() as author:
            if author.store.transacts == "no":
                return
            notes, run = await self._noted(author)
            places = [place_of(author, run, str(number)) for number in range(2, 12)]

            async def commit_often() -> None:
                for number in range(10):
                    await author.commit(insert(a_run(f"new-{number}", owner=author.id, status=Status.RUNNING)))

            await asyncio.gather(commit_often(), *[author.store.transact(place, notes.body(place)) for place in places])
            assert len(await staged_for(author.store, "r-1")) == 11


__all__ = ["StagingRules"]
