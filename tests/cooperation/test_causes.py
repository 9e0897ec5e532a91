"""Failures are stored once: what other rows have of them, and how that is read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from perdure.cooperation import Failure, Operation, Scope
from perdure.errors import ScopeFailed
from perdure.kernel.cooperation import MessageEventRow
from perdure.models.cooperation.causes import READ_MAX, resolved, whole
from perdure.models.cooperation.child_failures import child_failure
from perdure.models.cooperation.failures import (
    LEVELS_MAX,
    SHOWN_MAX,
    as_stored,
    gave_up,
    placed,
    reference,
    rollback_failed,
    to_failure,
    within_levels,
)
from perdure.models.cooperation.row_codec import RowCodec
from perdure.ports import PlainCodec
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic

TOP, MIDDLE, LEAF = topic("top"), topic("middle"), topic("leaf")
Message = dict[str, Any]


def raised(message: str = "the leaf fails") -> Failure:
    try:
        raise ValueError(message)
    except ValueError as error:
        return to_failure(error, "leaf[l]", "work")


def chain(levels: int) -> dict[str, Failure]:
    """What the rows of so many levels have, by place, and the top one under "top"."""
    rows: dict[str, Failure] = {}
    failure = placed(raised(), "0", 1)
    rows[failure.place] = decoded(as_stored(failure, "0/1"), "0/1")
    for level in range(1, levels):
        failure = placed(child_failure("go", f"deep[{level}]", [(failure, False)]), f"{level}", 1)
        rows[failure.place] = decoded(as_stored(failure, failure.place), failure.place)
    return rows | {"top": rows[failure.place]}


def decoded(stored: Failure, place: str) -> Failure:
    codec = RowCodec(PlainCodec())
    scope, _, seq = place.rpartition("/")
    return codec.read_failure(msgspec.json.encode(stored).decode(), scope, int(seq))


def test_a_row_has_its_own_failure_whole_and_of_others_a_reference() -> None:
    leaf = placed(raised(), "l", 2)
    middle = placed(child_failure("go", "middle[m]", [(leaf, False)]), "m", 3)
    top = placed(child_failure("go", "top[t]", [(middle, False)]), "t", 4)
    stored = as_stored(top, "t/4")
    assert (stored.place, stored.cut) == ("", False)
    (cause,) = stored.causes
    assert (cause.type, cause.place, cause.cut, cause.stack_trace) == ("ChildRolledBack", "m/3", True, ())
    assert [(one.message, one.place) for one in cause.causes] == [("the leaf fails", "l/2")]  # The root cause.
    assert as_stored(top, "t/5") == reference(top)
    assert decoded(stored, "t/4").root_cause.message == "the leaf fails"


def test_what_a_row_takes_does_not_grow_with_what_is_below() -> None:
    sizes = {levels: len(msgspec.json.encode(as_stored(chain(levels)["top"]))) for levels in (3, 30, 3000)}
    assert sizes[3000] - sizes[3] < 50


def test_references_do_not_repeat_long_messages() -> None:
    leaf = placed(raised("x" * 100_000), "l", 2)
    assert len(msgspec.json.encode(reference(leaf))) < 1_000
    reasons = [placed(raised("y" * 10_000), "l", seq) for seq in range(1_000)]
    assert len(gave_up(reasons, "top[t]").message) < 3_000
    assert len(rollback_failed(reasons, None, "top[t]").message) < 3_000


async def test_causes_are_read_back_level_by_level_within_bounds() -> None:
    rows = chain(2_000)
    asked: list[int] = []

    async def read(places: Sequence[str]) -> Mapping[str, Failure]:
        asked.append(len(places))
        return {place: rows[place] for place in places}

    found = await whole(rows["top"], read)
    assert asked == [1] * LEVELS_MAX
    chained = [*found.walk()]
    assert len(chained) == LEVELS_MAX + 3  # The last ones are a reference and its root cause.
    assert not any(one.cut for one in chained[:LEVELS_MAX])
    assert found.root_cause.message == "the leaf fails"  # Also beyond the bound.


async def test_of_many_causes_some_are_read_back() -> None:
    leaves = {f"l/{number}": placed(raised(f"{number}"), "l", number) for number in range(READ_MAX * 2)}
    top = decoded(as_stored(child_failure("go", "top[t]", [(one, False) for one in leaves.values()])), "t/1")
    asked: list[int] = []

    async def read(places: Sequence[str]) -> Mapping[str, Failure]:
        asked.append(len(places))
        return {place: leaves[place] for place in places}

    found = await whole(top, read)
    assert asked == [READ_MAX]
    assert [bool(one.stack_trace) for one in found.causes] == [True] * READ_MAX + [False] * READ_MAX
    assert [one.message for one in found.causes] == [f"{number}" for number in range(READ_MAX * 2)]


async def test_what_is_whole_is_not_read() -> None:
    async def read(places: Sequence[str]) -> Mapping[str, Failure]:
        raise AssertionError(places)

    failure = child_failure("go", "top[t]", [(raised(), False)])
    assert await whole(failure, read) is failure


def test_a_row_that_is_gone_leaves_the_reference() -> None:
    rows = chain(3)
    del rows["1/1"]
    found = resolved(rows["top"], rows)
    assert found.causes[0].cut
    assert "(its stack and its causes are in row 1/1 of message_event)" in str(found)


def test_thousands_of_causes_are_shown_within_bounds() -> None:
    deep, wide = raised(), child_failure("go", "top[t]", [(raised(), False)] * 5_000)
    for level in range(5_000):
        deep = child_failure("go", f"deep[{level}]", [(deep, False)])
    assert str(deep).count("caused by:") == SHOWN_MAX - 1
    assert str(deep).endswith("(1 more causes, and what caused those, are not shown)")
    assert str(wide).count("ValueError") == SHOWN_MAX - 1
    assert len(repr(deep)) < 500
    assert sum(1 for _ in deep.walk()) == 5_001
    assert len([*within_levels(deep).walk()]) == LEVELS_MAX + 2
    assert deep.root_cause.message == "the leaf fails"
    assert "the leaf fails" in str(deep.error())


def test_rows_that_have_all_causes_inside_them_are_read_as_they_are() -> None:
    """As rows were written before there were references."""
    text = (
        '{"type":"ChildRolledBack","message":"1 handler failed","source":"top[t]","causes":[{"type":"ChildRolledBack",'
        '"message":"1 handler failed","source":"middle[m]","causes":[{"type":"ValueError","message":"no","source":'
        '"leaf[l]","stackTrace":[{"fileName":"a.py","lineNumber":3}]}]}]}'
    )
    row = MessageEventRow(
        scope="t", seq=4, id="x", message_id="m", type="ROLLING_BACK", cooperation_lineage="r/t", created_at=1,
        exception=text,
    )  # fmt: skip
    failure = RowCodec(PlainCodec()).read_event(row).exception
    assert failure is not None
    assert failure.place == "t/4"
    assert [(one.source, one.cut) for one in failure.walk()] == [
        ("top[t]", False), ("middle[m]", False), ("leaf[l]", False)
    ]  # fmt: skip
    assert failure.root_cause.stack_trace[0].file_name == "a.py"
    # What refers to such a row refers to it like to any other.
    (cause,) = as_stored(child_failure("go", "above[a]", [(failure, False)])).causes
    assert (cause.place, cause.causes[0].message) == ("t/4", "no")


# ---------------------------------------------------------------------------------------------------------------------
# On an engine


def three_levels(seen: list[Failure]) -> list[Operation[Any]]:
    top, middle, leaf = Operation("top", TOP), Operation("middle", MIDDLE), Operation("leaf", LEAF)

    @top.step
    async def begin(scope: Scope, message: Message) -> None:
        pass

    @begin.rollback
    async def undo(scope: Scope, message: Message, cause: Failure) -> None:
        seen.append(cause)

    @top.step
    async def to_middle(scope: Scope, message: Message) -> None:
        await scope.emit(MIDDLE, {})

    @middle.step
    async def to_leaf(scope: Scope, message: Message) -> None:
        await scope.emit(LEAF, {})

    @leaf.step
    async def work(scope: Scope, message: Message) -> None:
        raise ValueError("the leaf fails")

    return [top, middle, leaf]


@pytest.mark.parametrize("restarted", [False, True])
async def test_code_and_callers_see_the_causes_of_all_levels(restarted: bool, source: StoreSource) -> None:
    seen: list[Failure] = []
    operations = three_levels(seen)
    async with Environment(operations, source) as env:
        root = await env.engine.emit(TOP, {})
        with pytest.raises(ScopeFailed) as caught:
            await root.finished()
        if restarted:  # Whoever reads it now has nothing of it in memory.
            await env.restart()
            root = await env.engine.emit(TOP, {}, id=root.message_id)
            with pytest.raises(ScopeFailed) as caught:
                await root.finished()
    for failure in (*seen, caught.value.failure):
        assert isinstance(failure, Failure)
        assert [one.type for one in failure.walk()] == ["ChildRolledBack", "ChildRolledBack", "ValueError"]
        assert failure.root_cause.stack_trace[-1].function_name == "work"
        assert "the leaf fails in step 'work' of leaf[" in str(failure)
