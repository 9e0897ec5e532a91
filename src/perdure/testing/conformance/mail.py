"""Mail: ops that others leave for a run's owner."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from perdure.errors import CommitConflict
from perdure.kernel.rows import Mail
from perdure.ports import Store
from perdure.testing.conformance.base import Rules, a_run, insert, update


def _mail(op: str = "{}", run_id: str = "r-1", sender: str = "s", slot: str = "") -> Mail:
    return Mail(run_id=run_id, sender=sender, slot=slot, op=op, at=5)


class MailRules(Rules):
    async def test_mail_reaches_the_owner_as_it_was_posted(self) -> None:
        async with self.author() as author, self.opened() as client:
            await author.commit(insert(a_run(owner=author.id)))
            mail = _mail('{"öp": 1}')
            mail_id = await client.leave_mail(mail)
            assert await author.store.mail(author.id, 10) == [msgspec.structs.replace(mail, id=mail_id)]

    async def test_mail_comes_in_the_order_of_posting_and_up_to_the_limit(self) -> None:
        async with self.author() as author, self.opened() as client:
            await author.commit(insert(a_run(owner=author.id)), insert(a_run("r-2", owner=author.id)))
            ids = [await client.leave_mail(_mail(str(i), f"r-{1 + i % 2}")) for i in range(10)]
            assert ids == sorted(ids)
            assert [mail.op for mail in await author.store.mail(author.id, 4)] == ["0", "1", "2", "3"]
            assert [mail.id for mail in await author.store.mail(author.id, 100)] == ids
            assert await author.store.mail(author.id, 0) == []

    async def test_mail_comes_in_the_order_of_posting_though_clocks_differ(self) -> None:
        async with self.author() as author, self.opened() as client:
            await author.commit(insert(a_run(owner=author.id)))
            for i in range(3):
                await client.leave_mail(msgspec.structs.replace(_mail(str(i)), at=90 - i))
            assert [mail.op for mail in await author.store.mail(author.id, 10)] == ["0", "1", "2"]

    async def test_mail_of_every_sender_stays_in_order_when_many_post(self) -> None:
        async with self.author() as author, self.opened() as one, self.opened() as other:
            await author.commit(insert(a_run(owner=author.id)))

            async def send(client: Store, sender: str) -> None:
                for i in range(15):
                    await client.leave_mail(_mail(str(i), sender=sender))

            await asyncio.gather(send(one, "one"), send(other, "other"))
            mail = await author.store.mail(author.id, 100)
            for sender in ("one", "other"):
                assert [one.op for one in mail if one.sender == sender] == [str(i) for i in range(15)]

    async def test_mail_reaches_the_owner_and_without_a_living_one_everybody(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(insert(a_run("r-1", owner="e-1")), insert(a_run("free")))
            await other.commit(insert(a_run("r-2", owner="e-2")))
            for run_id in ("r-1", "r-2", "free", "unknown"):
                await one.store.leave_mail(_mail(run_id=run_id))
            assert [mail.run_id for mail in await one.store.mail("e-1", 10)] == ["r-1", "free", "unknown"]
            assert [mail.run_id for mail in await one.store.mail("e-2", 10)] == ["r-2", "free", "unknown"]
            await other.claim()
            assert [mail.run_id for mail in await one.store.mail("e-1", 10)] == ["r-1", "unknown"]
            other.store.abandon()
            assert [mail.run_id for mail in await one.store.mail("e-1", 10)] == ["r-1", "unknown"]
            await one.store.mark_dead_engines()
            assert len(await one.store.mail("e-1", 10)) == 4

    async def test_the_commit_that_consumes_mail_deletes_it_and_leaves_the_answer(self) -> None:
        async with self.author() as author, self.opened() as client:
            await author.commit(insert(a_run(owner=author.id)))
            first, second, third = [
                await client.leave_mail(_mail(str(i), slot=slot)) for i, slot in enumerate(("a", "", "c"))
            ]
            assert await client.collect(["a"]) == {}
            await author.commit(mail_done={first: '"ünswer"', second: "for nobody"})
            assert [mail.id for mail in await author.store.mail(author.id, 10)] == [third]
            assert await client.collect(["a", "", "c"]) == {"a": '"ünswer"'}
            assert await client.collect(["a", "", "c"]) == {}
            assert await client.collect([]) == {}

    async def test_an_empty_answer_is_an_answer(self) -> None:
        async with self.author() as author:
            mail_id = await author.store.leave_mail(_mail(slot="a"))
            await author.commit(mail_done={mail_id: ""})
            assert await author.store.collect(["a"]) == {"a": ""}

    async def test_mail_with_a_slot_is_left_once(self) -> None:
        async with self.author() as author:
            mail_id = await author.store.leave_mail(_mail(slot="a"))
            assert await author.store.leave_mail(_mail(slot="a")) == 0
            await author.commit(mail=[_mail(slot="a"), _mail(slot="b")])
            assert [mail.slot for mail in await author.store.mail(author.id, 10)] == ["a", "b"]
            await author.commit(mail_done={mail_id: "done"})
            assert await author.store.leave_mail(_mail(slot="a")) == 0
            assert [mail.slot for mail in await author.store.mail(author.id, 10)] == ["b"]
            assert await author.store.collect(["a"]) == {"a": "done"}

    async def test_mail_stays_if_the_commit_that_consumes_it_fails(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run(owner=author.id)))
            mail_id = await author.store.leave_mail(_mail(slot="a"))
            with pytest.raises(CommitConflict):
                await author.commit(update(a_run(owner=author.id, version=9)), mail_done={mail_id: "r"})
            assert [mail.id for mail in await author.store.mail(author.id, 10)] == [mail_id]
            assert await author.store.collect(["a"]) == {}

    async def test_mail_that_somebody_else_has_answered_is_not_answered_again(self) -> None:
        async with self.author() as author, self.author("e-2") as other:
            first, second = [await author.store.leave_mail(_mail(slot=slot)) for slot in "ab"]
            await author.commit(mail_done={first: "1"})
            with pytest.raises(CommitConflict) as conflict:
                await other.commit(insert(a_run()), mail_done={first: "", second: "2"})
            assert conflict.value.mail_ids == {first}
            assert not conflict.value.run_ids
            assert await author.store.load(["r-1"]) == {}
            await other.commit(insert(a_run()), mail_done={second: "2"})
            assert await author.store.collect(["a", "b"]) == {"a": "1", "b": "2"}

    async def test_answers_that_nobody_came_for_are_forgotten(self) -> None:
        async with self.author() as author:
            first, second = [await author.store.leave_mail(_mail(slot=slot)) for slot in "ab"]
            await author.commit(mail_done={first: "1"}, at=50)
            await author.commit(mail_done={second: "2"}, at=60)
            assert await author.store.purge(at=0, keys_before=60, limit=10) == 1
            assert await author.store.collect(["a", "b"]) == {"b": "2"}

    async def test_the_id_of_mail_is_never_given_again(self) -> None:
        async with self.author() as author:
            first = await author.store.leave_mail(_mail())
            await author.commit(mail_done={first: ""})
            assert await author.store.leave_mail(_mail()) > first
