"""The queue of ops: its lanes share a batch, ops of one run keep their order, nothing stays behind."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from perdure.coordinator.inbox import Inbox
from perdure.coordinator.queued_ops import Item
from perdure.kernel.ops import Advance, Op, Release, Retry, Wake
from perdure.kernel.rows import Entry

OPS_MAX = 64
PART = OPS_MAX // 4


def an_inbox(**bounds: Any) -> Inbox:
    return Inbox(**{"outside_max": 10_000, "batch_ops_max": OPS_MAX, "batch_bytes_max": 1_000} | bounds)


def a_wake(run_id: str) -> Wake:
    return Wake(run_id=run_id, at=0)


def a_large_op(run_id: str) -> Advance:
    entry = Entry(run_id=run_id, seq=1, position="1", kind="step", name="s", value="x" * 100, started_at=0, at=0)
    return Advance(run_id=run_id, at=0, claim=1, cause="", entries=(entry,))


def put(inbox: Inbox, lane: str, count: int) -> None:
    for number in range(count):
        inbox.put(Item(a_wake(f"{lane}-{number}"), None, lane == "outside", is_due=lane == "due"))


def lanes(items: list[Item]) -> Counter[str]:
    return Counter(item.op.run_id.partition("-")[0] for item in items)


def test_all_that_waits_is_one_batch() -> None:
    inbox = an_inbox()
    for lane in ("outside", "due", "own"):
        put(inbox, lane, 10)
    assert lanes(inbox.take()) == {"outside": 10, "due": 10, "own": 10}
    assert len(inbox) == 0


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ({"outside": 500}, {"outside": OPS_MAX}),
        ({"own": 500}, {"own": OPS_MAX}),
        ({"due": 500}, {"due": 3 * PART}),
        ({"due": 500, "outside": 3}, {"due": 3 * PART // 2, "outside": 3}),
        ({"due": 500, "own": 3}, {"due": 3 * PART // 2, "own": 3}),
        ({"due": 500, "outside": 500}, {"due": 2 * PART, "outside": 2 * PART}),
        ({"own": 500, "outside": 500}, {"own": 3 * PART, "outside": PART}),
        ({"own": 500, "outside": 500, "due": 500}, {"own": PART, "outside": PART, "due": 2 * PART}),
        ({"own": 5, "outside": 500, "due": 5}, {"own": 5, "outside": OPS_MAX - 10, "due": 5}),
    ],
)
def test_each_lane_has_its_part_of_a_batch(waiting: dict[str, int], expected: dict[str, int]) -> None:
    inbox = an_inbox()
    for lane, count in waiting.items():
        put(inbox, lane, count)
    assert lanes(inbox.take()) == expected


def test_a_wake_up_with_what_the_run_does_then_is_two_ops() -> None:
    inbox = an_inbox()
    put(inbox, "due", 10)
    for number in range(100):
        then = Advance(run_id=f"ahead-{number}", at=0, claim=1, cause="")
        inbox.put(Item(Wake(run_id=then.run_id, at=0, then=then), None, False, is_due=True))
    assert lanes(inbox.take()) == {"due": 10, "ahead": (PART - 10) // 2 + PART}
    put(inbox, "own", 1)
    assert lanes(inbox.take()) == {"ahead": PART // 2 + PART // 4, "own": 1}
    left = 0
    while taken := inbox.take():
        left += len(taken)
    assert left == 100 - (PART - 10) // 2 - PART - PART // 2 - PART // 4


def test_who_was_in_the_last_batch_may_be_about_to_go_on() -> None:
    inbox = an_inbox()
    put(inbox, "due", 500)
    put(inbox, "outside", 1)
    found = [lanes(inbox.take())["due"] for _ in range(4)]
    assert found == [3 * PART // 2, 3 * PART // 2, 3 * PART, 3 * PART]


@pytest.mark.parametrize("seed", range(10))
def test_ops_of_a_run_keep_their_order_and_none_is_lost(seed: int) -> None:
    random = Random(seed)
    inbox = an_inbox()
    put_in: list[Op] = []
    taken: list[Op] = []
    for _ in range(400):
        for _ in range(random.randrange(2 * PART)):
            op = Wake(run_id=f"r-{random.randrange(40)}" if random.random() < 0.9 else "", at=len(put_in))
            outside = random.random() < 0.4
            put_in.append(op)
            inbox.put(Item(op, None, outside, is_due=not outside and random.random() < 0.5))
        if random.random() < 0.1:
            inbox.put_back(inbox.empty())
        taken += [item.op for item in inbox.take()]
    while len(inbox):
        taken += [item.op for item in inbox.take()]
    assert inbox.take() == []
    assert Counter(op.at for op in taken) == Counter(op.at for op in put_in)
    for run_id in {op.run_id for op in put_in} - {""}:
        times = [op.at for op in taken if op.run_id == run_id]
        assert times == sorted(times), run_id


@pytest.mark.parametrize("lane", ["outside", "own", "due"])
def test_a_retry_begins_a_batch_however_much_else_waits(lane: str) -> None:
    inbox = an_inbox()
    inbox.put(Item(a_wake("r"), None, lane == "outside", is_due=lane == "due"))
    inbox.put(Item(Retry(run_id="r", at=0, expected_version=1), None, True))
    inbox.put(Item(Release(run_id="r", at=0, claim=1), None, False))
    for other in ("outside", "own", "due"):
        put(inbox, other, 200)
    assert [type(item.op) for item in inbox.take() if item.op.run_id == "r"] == [Wake]
    batch = inbox.take()
    assert type(batch[0].op) is Retry
    assert [type(item.op) for item in batch if item.op.run_id == "r"] == [Retry, Release]
    assert lanes(batch).keys() == {"r", "outside", "own", "due"}


def test_large_ops_of_one_lane_leave_room_for_the_others() -> None:
    inbox = an_inbox()
    for number in range(30):
        large = Entry(
            run_id=f"own-{number}", seq=1, position="1", kind="step", name="s", value="x" * 100, started_at=0, at=0
        )
        inbox.put(Item(Advance(run_id=large.run_id, at=0, claim=1, cause="", entries=(large,)), None, False))
    put(inbox, "due", 5)
    put(inbox, "outside", 5)
    batch = inbox.take()
    assert lanes(batch) == {"own": 10, "outside": 5, "due": 5}
    sizes = [sum(item.op.payload_bytes for item in batch)]
    while len(inbox):
        sizes.append(sum(item.op.payload_bytes for item in inbox.take()))
    assert max(sizes) <= 1_000
    assert sum(sizes) == 3_000


def test_one_op_that_is_larger_than_a_batch_is_a_batch() -> None:
    inbox = an_inbox(batch_bytes_max=10)
    inbox.put(Item(a_large_op("r"), None, False))
    put(inbox, "due", 1)
    assert len(inbox.take()) == 1
    assert lanes(inbox.take()) == {"due": 1}
