"""Rows, lineages and failures as data."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from perdure.cooperation import Context, Deadline, Failure, Key
from perdure.errors import InvariantViolated, UnstorableValue
from perdure.kernel.lineages import (
    LINEAGE_WHOLE_MAX,
    Kinship,
    covers,
    depth_of,
    extended,
    is_root_run,
    is_run,
    origin_of,
    read_lineage,
    read_origin,
    shortened,
)
from perdure.models.cooperation.child_failures import child_failure
from perdure.models.cooperation.deadlines import earlier, for_compensation
from perdure.models.cooperation.failures import rollback_failed, to_failure, trace
from perdure.models.cooperation.message_events import EventType, MessageEvent, State, check_rows, in_order, state_of


def row(seq: int, type: EventType, **columns: Any) -> MessageEvent:
    fields: dict[str, Any] = {
        "seq": seq,
        "message_id": "m",
        "type": type,
        "coroutine_name": "o",
        "cooperation_lineage": ("r", "a"),
    }
    return MessageEvent(**fields | columns)


def test_a_prefix_is_an_ancestor() -> None:
    assert covers(("r",), ("r", "a", "b"))
    assert covers(("r", "a"), ("r", "a"))
    assert not covers(("r", "b"), ("r", "a", "b"))
    kinship = Kinship([("r", "a"), ("r", "a", "b"), ("r", "a", "b", "c"), ("r", "d")])
    assert [*kinship.above(("r", "a", "b"))] == ["b", "a", "r"]
    assert kinship.below("a") == {"a", "b", "c"}
    assert (is_root_run(("r", "a")), is_root_run(("r", "a", "b"))) == (True, False)
    assert (is_run(("r",)), is_run(("r", "a"))) == (False, True)


def test_a_long_lineage_has_its_root_its_end_and_how_many_ids_are_between() -> None:
    ids = ["r", *(f"{number}" for number in range(1, 2_000))]
    lineage: tuple[str, ...] = ("r",)
    for depth, id in enumerate(ids[1:], 2):
        lineage = extended(lineage, id)
        assert depth_of(lineage) == depth
        assert lineage == shortened(tuple(ids[:depth])) == shortened(lineage)
        assert len(lineage) <= LINEAGE_WHOLE_MAX
        assert (lineage[0], lineage[-2:]) == ("r", (ids[depth - 2], ids[depth - 1]))
        assert (lineage == tuple(ids[:depth])) == (depth <= LINEAGE_WHOLE_MAX)
    # Rows from before lineages were shortened have all ids.
    assert read_origin(f"{'/'.join(ids)} m-1") == read_origin(origin_of("m-1", lineage)) == ("m-1", lineage)
    assert read_lineage("/".join(ids)) == lineage == read_lineage("/".join(lineage))


def test_the_number_is_the_order_and_time_is_not() -> None:
    rows = [row(number, EventType.SUSPENDED, created_at=-number) for number in range(1, 9)]
    shuffled = rows.copy()
    random.Random(1).shuffle(shuffled)
    assert in_order(shuffled) == rows


def test_a_row_survives_the_way_to_the_store_and_back() -> None:
    try:
        raise ValueError("broken") from KeyError("cause")
    except ValueError as error:
        failure = to_failure(error, "o[a]")
    before = row(
        1, EventType.ROLLING_BACK, exception=failure, context=Context({"unknown": {"kept": [1, None]}}), next_step=0
    )
    assert msgspec.json.decode(msgspec.json.encode(before), type=MessageEvent) == before
    told: dict[str, Any] = msgspec.to_builtins(failure)
    assert (told["type"], told["message"], told["source"]) == ("ValueError", "broken", "o[a]")
    assert set(told["stackTrace"][0]) == {"fileName", "lineNumber", "functionName"}
    assert told["causes"][0]["type"] == "KeyError"


@pytest.mark.parametrize(
    "rows",
    [
        [row(1, EventType.SEEN), row(1, EventType.SUSPENDED)],
        [row(1, EventType.SEEN), row(2, EventType.SEEN)],
        [row(1, EventType.ROLLED_BACK), row(2, EventType.ROLLBACK_FAILED)],
        [row(1, EventType.EMITTED), row(2, EventType.EMITTED, coroutine_name="other")],
        [row(1, EventType.ROLLBACK_EMITTED), row(1, EventType.ROLLBACK_EMITTED, cooperation_lineage=("r",))],
        [row(1, EventType.CANCELLATION_REQUESTED), row(2, EventType.CANCELLATION_REQUESTED, message_id="n")],
        [row(0, EventType.SEEN)],
        [row(1, EventType.SEEN, cooperation_lineage=())],
    ],
)
def test_what_there_may_be_one_of_is_checked(rows: list[MessageEvent]) -> None:
    with pytest.raises(InvariantViolated):
        check_rows(rows)


def test_the_state_of_a_run_follows_from_its_rows() -> None:
    rows: list[MessageEvent] = []
    found = [state_of(rows)]
    for type in (EventType.SEEN, EventType.COMMITTED, EventType.ROLLING_BACK, EventType.ROLLBACK_FAILED):
        rows.append(row(len(rows) + 1, type))
        found.append(state_of(rows))
    assert found == [
        *[State.CREATED, State.ACTIVE, State.COMMITTED, State.ROLLING_BACK, State.ROLLBACK_FAILED],
    ]
    assert state_of([row(1, EventType.CANCELLATION_REQUESTED)]) is State.CREATED


def test_what_could_not_be_undone_comes_first() -> None:
    one, two = Failure(type="A", message="rolled back"), Failure(type="B", message="could not")
    both = child_failure("s", "o[a]", [(one, False), (two, True)])
    assert (both.type, both.causes) == ("ChildRollbackFailed", (two, one))
    assert child_failure("s", "o[a]", [(one, False)]).type == "ChildRolledBack"
    began = Failure(type="C", message="why it rolled back")
    assert rollback_failed([two], began, "o[a]").causes == (began,)
    assert rollback_failed([one, two], began, "o[a]").causes == (one, two, began)


def test_a_failure_that_is_raised_again_is_not_wrapped() -> None:
    failure = Failure(type="A", message="once")
    with pytest.raises(Exception, match="A: once") as raised:
        raise failure.error()
    assert to_failure(raised.value, "o[b]") is failure


def test_members_of_a_group_are_causes_and_nothing_makes_it_raise() -> None:
    class Awkward(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    group = ExceptionGroup("two", [ValueError("a"), Awkward()])
    failure = to_failure(group, "o[a]")
    assert [cause.message for cause in failure.causes] == [
        "a",
        f"<{Awkward.__qualname__} whose str() failed>",
    ]
    assert trace(failure).count("\nand by:") == 1


def test_deadlines_combine_to_the_earliest_however_often() -> None:
    early, late = Deadline(1, "a"), Deadline(2, "b")
    both = earlier(late, early)
    assert both == Deadline(1, "a", (Deadline(2, "b"),))
    assert earlier(both, both) == both
    assert earlier(both, late) == both


def test_a_context_is_read_by_typed_keys_when_asked() -> None:
    number = Key("number", int)
    context = Context({"number": "seven"})
    assert context.plus(Context({"other": 1})).values == {"number": "seven", "other": 1}
    with pytest.raises(UnstorableValue, match="'number' is no int"):
        context.get(number)
    with pytest.raises(UnstorableValue, match="cannot be stored"):
        context.put(number, object())  # type: ignore[misc]
    assert "perdure.deadline" not in for_compensation(Context({"perdure.deadline": {"at": 1}}), 2).values
