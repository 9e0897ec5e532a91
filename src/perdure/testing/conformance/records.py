"""Records. Versions follow one another, even if several engines store them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import CommitConflict, CommitRefused
from perdure.kernel.records import Record
from perdure.kernel.runless_rows import SharedWrites
from perdure.testing.conformance.base import Author, Rules, a_run, insert


def a_record(body: str = "1", version: int = 1, **fields: Any) -> Record:
    defaults: dict[str, Any] = {"kind": "prompt", "name": "greeting", "actor": "ann", "at": 5}
    return Record(digest=f"d-{body}", body=body, version=version, **defaults | fields)


def put(*records: Record) -> SharedWrites:
    return SharedWrites(records=[*records])


class RecordVersionRules(Rules):
    async def test_versions_of_a_record_come_one_after_the_other(self) -> None:
        async with self.author() as author:
            store = author.store
            await author.commit(shared=put(a_record("1"), a_record("2", 2)))
            for outdated in (a_record("3", 1), a_record("3", 2), a_record("3", 4)):
                with pytest.raises(CommitConflict):
                    await author.commit(insert(a_run()), shared=put(outdated))
            assert await store.load(["r-1"]) == {}
            await author.commit(shared=put(a_record("1", 3), a_record(name="other"), a_record(kind="action")))
            assert await store.record("prompt", "greeting") == a_record("1", 3)
            assert await store.record("prompt", "greeting", 2) == a_record("2", 2)
            assert await store.record("prompt", "greeting", 4) is None
            assert await store.record("prompt", "greeting", 0) is None
            assert await store.record("prompt", "nobody") is None
            assert [(one.name, one.version) for one in await store.records("prompt")] == [("greeting", 3), ("other", 1)]
            assert [one.name for one in await store.records("prompt", after="greeting")] == ["other"]
            assert [one.name for one in await store.records("prompt", limit=1)] == ["greeting"]

    async def test_records_put_at_the_same_time_have_versions_of_their_own(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:

            async def work(author: Author) -> list[int]:
                got: list[int] = []
                while len(got) < 10:
                    newest = await author.store.record("prompt", "greeting")
                    version = 1 if newest is None else newest.version + 1
                    try:
                        await author.commit(shared=put(a_record(f"{author.id}-{version}", version)))
                    except CommitConflict:
                        continue
                    got.append(version)
                return got

            got = await asyncio.gather(work(one), work(other))
            assert sorted(got[0] + got[1]) == list(range(1, 21))

    async def test_a_batch_that_is_sent_again_puts_a_record_once(self) -> None:
        async with self.author() as author:
            batch = author.batch(insert(a_run()), shared=put(a_record()))
            await author.store.commit(batch)
            assert (await author.store.commit(batch)).landed
            assert len(await author.store.record_versions(since=0)) == 1

    async def test_a_record_that_is_refused_takes_the_batch_with_it(self) -> None:
        async with self.author() as author:
            with pytest.raises(CommitRefused):
                await author.commit(insert(a_run()), shared=put(a_record("\ud800")))
            assert await author.store.load(["r-1"]) == {}
            assert await author.store.record("prompt", "greeting") is None
