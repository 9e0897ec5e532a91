"""Definitions: what can be said, and what is refused, with the place."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from perdure.cooperation import Failure, Key, Operation, Scope, TimeWindow, Topic, go_on, go_to, repeat
from perdure.errors import InvalidArguments, InvalidDefinition, UnstorableValue

HERE = re.escape(__file__)


class Order(msgspec.Struct):
    sku: str


ORDERS = Topic("orders", Order)


def nothing(scope: Scope, order: Order) -> None: ...


def test_a_topic_writes_and_reads_messages_of_its_type_only() -> None:
    assert ORDERS.read(ORDERS.write(Order("s-1"))) == Order("s-1")
    with pytest.raises(InvalidArguments, match="no message for topic 'orders'"):
        ORDERS.write({"sku": 1})  # type: ignore[arg-type]
    with pytest.raises(UnstorableValue, match="does not fit its type"):
        ORDERS.read('{"other": 1}')


def test_steps_stand_in_the_order_of_their_definition() -> None:
    place = Operation("place", ORDERS)

    @place.step
    async def take(scope: Scope, order: Order) -> None:
        await scope.emit(ORDERS, order)

    @take.finally_
    def tidy(scope: Scope, order: Order) -> None: ...

    place.sleep(timedelta(seconds=1))
    place.sleep(lambda order: timedelta(seconds=len(order.sku)))
    place.step(name="pay", at=datetime(2030, 1, 1, tzinfo=UTC))(nothing)
    assert [(node.name, node.kind) for node in place.plan.nodes] == [
        ("take", "step"),
        ("take (finally)", "finally"),
        ("sleep", "sleep"),
        ("sleep 2", "sleep"),
        ("pay (scheduled)", "sleep"),
        ("pay", "step"),
    ]


def test_a_step_is_gone_to_by_its_number_or_name() -> None:
    place = Operation("place", ORDERS)
    first = place.step(name="first")(nothing)
    first.finally_(nothing)
    place.step(name="second", at=datetime(2030, 1, 1, tzinfo=UTC))(nothing)
    place.step(name="third")(nothing)
    plan = place.plan
    assert [plan.target(go_to(name), 0) for name in ("first", "second", "third", 0, 1, 2)] == [0, 2, 4, 0, 2, 4]
    assert [plan.target(said, 3) for said in (None, go_on(), repeat())] == [None, None, 3]
    for nowhere in (3, -1, "first (finally)", "nowhere"):
        with pytest.raises(InvalidArguments, match="operation 'place' has no step"):
            plan.target(go_to(nowhere), 0)


def test_names_of_ones_own_that_collide_with_made_up_ones_are_kept() -> None:
    place = Operation("place", ORDERS)
    place.step(name="a")(nothing).finally_(nothing)
    place.step(name="a (finally)")(nothing)
    assert [node.name for node in place.plan.nodes] == ["a", "a (finally)$", "a (finally)"]


def method(scope: Scope) -> None: ...


def wrong(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda place: Topic("", Order), "the name of a topic"),
        (lambda place: Operation("x" * 501, ORDERS), "the name of a operation"),
        (lambda place: Operation("x", wrong("orders")), rf"operation 'x' at {HERE}:\d+ handles a Topic"),
        (lambda place: Operation("x", ORDERS, policy=wrong("stop")), rf"at {HERE}:\d+: policy is"),
        (lambda place: Operation("x", ORDERS, strategy=wrong("all")), rf"at {HERE}:\d+: a strategy is"),
        (lambda place: place.step(method), rf"takes \(scope, message\), which 'method' at {HERE}:\d+ does not"),
        (lambda place: place.step(print), "is a function, not"),
        (lambda place: place.step(name="nothing")(nothing), rf"has two steps 'nothing'; the second is at {HERE}:\d+"),
        (lambda place: place.sleep("3"), rf"at {HERE}:\d+: the duration of sleep"),
        (lambda place: place.sleep_until(datetime(2030, 1, 1)), "with a time zone"),  # noqa: DTZ001
        (lambda place: place.periodic(timedelta(0), count=3), rf"at {HERE}:\d+: periodic takes"),
        (lambda place: TimeWindow(timedelta(0)), "longer than nothing"),
        (lambda place: Key("", str), "needs a name"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(define: Any, message: str) -> None:
    place = Operation("place", ORDERS)
    place.step(nothing)
    with pytest.raises(InvalidDefinition, match=message):
        define(place)


def test_a_second_rollback_is_refused_with_both_places() -> None:
    place = Operation("place", ORDERS)
    step = place.step(nothing)

    @step.rollback
    def one(scope: Scope, order: Order, cause: Failure) -> None: ...

    with pytest.raises(InvalidDefinition, match=rf"has a rollback already: {HERE}:\d+; {HERE}:\d+ is another"):

        @step.rollback
        def other(scope: Scope, order: Order, cause: Failure) -> None: ...

    with pytest.raises(InvalidDefinition, match=r"takes \(scope, message, failure, attempt\)"):
        step.on_child_failure(wrong(nothing))


def test_an_operation_without_steps_and_one_in_use_are_refused() -> None:
    place = Operation("place", ORDERS)
    with pytest.raises(InvalidDefinition, match=rf"operation 'place' at {HERE}:\d+ has no steps"):
        _ = place.plan
    place.step(nothing)
    _ = place.plan
    with pytest.raises(InvalidDefinition, match="is in use already"):
        place.step(name="late")(nothing)


def test_a_context_key_has_one_type() -> None:
    Key("size", int)
    Key("size", int)
    with pytest.raises(InvalidDefinition, match="defined twice: as int and as str"):
        Key("size", str)
