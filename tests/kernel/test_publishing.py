"""What runs say: when it counts."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.kernel import ops
from perdure.kernel.decision import NOTHING
from perdure.kernel.effects import Finish, Proceed, Published
from perdure.kernel.ops import Continuation, End
from perdure.kernel.rows import PublishedValue, StreamItem
from perdure.kernel.runs import Outcome
from perdure.kernel.status import FINISHED, Status
from tests.kernel.examples import ME, NOW, OTHER, PAUSED, a_run, advance, an_entry, decided

VALUE = PublishedValue(run_id="r-1", key="progress", value="0.5", at=NOW, mark=(1, 1))
ITEM = StreamItem(run_id="r-1", stream="log", value="1", at=NOW, mark=(1, 2))
SAID: dict[str, Any] = {"published": (VALUE,), "stream_items": (ITEM,)}
APPEND = ops.Append(run_id="r-1", at=NOW, claim=2, stream_items=(ITEM,))


def test_what_is_said_is_written_with_the_entry_and_told_to_readers() -> None:
    decision = decided(a_run(), advance(entries=(an_entry(),), **SAID))
    assert (decision.entries, decision.published, decision.stream_items) == ((an_entry(),), (VALUE,), (ITEM,))
    assert decision.effects == (Proceed("r-1"), Published("r-1"))
    assert not decision.row


def test_last_words_are_written_with_the_end() -> None:
    end = End(status=Status.SUCCEEDED, outcome=Outcome(output="1"))
    decision = decided(a_run(), advance(end=end, **SAID))
    assert (decision.published, decision.stream_items) == ((VALUE,), (ITEM,))
    assert [type(effect) for effect in decision.effects] == [Finish, Published]


def test_what_a_run_says_before_it_continues_as_another_call_is_written() -> None:
    continuation = Continuation(workflow="w", workflow_version="", input="2", origin="")
    decision = decided(a_run(), advance(continuation=continuation, **SAID))
    assert decision.input == "2"
    assert (decision.published, decision.stream_items) == ((VALUE,), (ITEM,))


def test_who_says_nothing_wakes_no_reader() -> None:
    assert decided(a_run(), advance(entries=(an_entry(),))).effects == (Proceed("r-1"),)


@pytest.mark.parametrize("status", [Status.RUNNING, Status.SUSPENDED, Status.ROLLING_BACK])
def test_what_a_step_appends_changes_nothing_of_its_run(status: Status) -> None:
    run = a_run(status)
    decision = decided(run, APPEND)
    assert (decision.run, decision.row, decision.audit) == (run, False, ())
    assert (decision.stream_items, decision.effects, decision.reply) == ((ITEM,), (Published("r-1"),), True)


LATE = {
    "the run is gone": None,
    "another engine has it": a_run(owner=OTHER),
    "nobody has it": a_run(owner=None),
    "it was claimed anew": a_run(claim=3),
    "it is held": a_run(hold=PAUSED, owner=None),
    **{f"it is {status}": a_run(status) for status in sorted(FINISHED)},
}


@pytest.mark.parametrize("why", LATE)
def test_what_comes_too_late_is_dropped(why: str) -> None:
    assert decided(LATE[why], APPEND, ME) == NOTHING
    assert decided(LATE[why], advance(**SAID), ME) == NOTHING


def test_what_is_said_counts_against_the_size_of_a_batch() -> None:
    assert advance(**SAID).payload_bytes == len(VALUE.value) + len(ITEM.value)
    assert APPEND.payload_bytes == len(ITEM.value)
