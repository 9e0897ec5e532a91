"""The order of effects, exactly: forwards, and backwards when something fails, at every depth."""

from __future__ import annotations

import random
from typing import Any

from perdure.cooperation import Operation
from perdure.models.cooperation.message_events import EventType, State
from tests.cooperation.everywhere import Everywhere
from tests.cooperation.shop import Book, operation, topic
from tests.cooperation.world import World

ROOT, CHILD, GRANDCHILD = topic("root"), topic("child"), topic("grandchild")


def world_of(book: Book, *operations: Operation[Any], **options: Any) -> World:
    book.world = World(*operations, **options)
    book.world.emit(ROOT, {})
    return book.world.run()


def only(log: list[str], *names: str) -> list[str]:
    return [line for line in log if line.split()[0] in names]


def test_a_parent_goes_on_only_when_all_handlers_are_done(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        return world_of(
            book,
            operation(book, "root", ROOT, [[CHILD], []]),
            operation(book, "a", CHILD, [[], []]),
            operation(book, "b", CHILD, [[]]),
            **options,
        )

    def check(world: World) -> None:
        assert only(world.log, "root", "a") == ["root 0", "a 0", "a 1", "root 1"]
        assert only(world.log, "root", "b") == ["root 0", "b 0", "root 1"]
        assert set(world.states().values()) == {State.COMMITTED}

    world = everywhere(scenario, check)
    assert world.sequence() == [
        ("EMITTED", None, None),
        ("SEEN", None, "root"),
        ("EMITTED", "s0", "root"),
        ("SUSPENDED", "s0", "root"),
        ("SEEN", None, "a"),
        ("SUSPENDED", "s0", "a"),
        ("SUSPENDED", "s1", "a"),
        ("COMMITTED", "s1", "a"),
        ("SEEN", None, "b"),
        ("SUSPENDED", "s0", "b"),
        ("COMMITTED", "s0", "b"),
        ("SUSPENDED", "s1", "root"),
        ("COMMITTED", "s1", "root"),
    ]


def test_a_failure_in_the_first_step_undoes_nothing_and_emits_nothing(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = operation(book, "root", ROOT, [[CHILD]], fails_at=0)
        return world_of(book, root, operation(book, "a", CHILD, [[]]), **options)

    def check(world: World) -> None:
        assert world.log == []
        assert [row.type for row in world.events] == [
            EventType.EMITTED,
            EventType.SEEN,
            EventType.ROLLING_BACK,
            EventType.ROLLED_BACK,
        ]
        assert [one.handler for one in world.runs] == ["root"]

    everywhere(scenario, check)


def test_committed_children_are_rolled_back_before_the_step_that_emitted(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        return world_of(
            book,
            operation(book, "root", ROOT, [[CHILD], []], fails_at=1),
            operation(book, "child", CHILD, [[], []]),
            **options,
        )

    def check(world: World) -> None:
        assert world.log == ["root 0", "child 0", "child 1", "child undo 1", "child undo 0", "root undo 0"]

    world = everywhere(scenario, check)
    assert world.sequence()[8:] == [
        ("ROLLING_BACK", "s1", "root"),
        ("ROLLBACK_EMITTED", "Rollback of s0[0,] (rolling back child scopes)", "root"),
        ("SUSPENDED", "Rollback of s0[0,] (rolling back child scopes)", "root"),
        ("ROLLING_BACK", None, "child"),
        ("SUSPENDED", "Rollback of s1[0,] (rolling back child scopes)", "child"),
        ("SUSPENDED", "Rollback of s1[0,]", "child"),
        ("SUSPENDED", "Rollback of s0[0,] (rolling back child scopes)", "child"),
        ("SUSPENDED", "Rollback of s0[0,]", "child"),
        ("ROLLED_BACK", "Rollback of s0[0,]", "child"),
        ("SUSPENDED", "Rollback of s0[0,]", "root"),
        ("ROLLED_BACK", "Rollback of s0[0,]", "root"),
    ]


def test_rollback_n_deep_is_the_reverse_of_execution(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        return world_of(
            book,
            operation(book, "root", ROOT, [[], [CHILD]]),
            operation(book, "a", CHILD, [[], [GRANDCHILD], []]),
            operation(book, "b", CHILD, [[], []], fails_at=1),
            operation(book, "leaf", GRANDCHILD, [[], []]),
            **options,
        )

    def check(world: World) -> None:
        assert only(world.log, "root", "a", "leaf") == [
            "root 0",
            "root 1",
            "a 0",
            "a 1",
            "leaf 0",
            "leaf 1",
            "a 2",
            "a undo 2",
            "leaf undo 1",
            "leaf undo 0",
            "a undo 1",
            "a undo 0",
            "root undo 1",
            "root undo 0",
        ]
        # The one that failed rolls back by itself, at once, and is not rolled back again.
        assert only(world.log, "root", "b") == ["root 0", "root 1", "b 0", "b undo 0", "root undo 1", "root undo 0"]
        assert set(world.states().values()) == {State.ROLLED_BACK}

    everywhere(scenario, check, seeds=30)


def test_a_failure_at_depth_three_with_two_handlers_at_each_level(everywhere: Everywhere) -> None:
    book = Book()
    deep = topic("deep")

    def scenario(**options: Any) -> World:
        return world_of(
            book,
            operation(book, "root", ROOT, [[CHILD], []]),
            operation(book, "c1", CHILD, [[GRANDCHILD], []]),
            operation(book, "c2", CHILD, [[]]),
            operation(book, "g1", GRANDCHILD, [[deep], []]),
            operation(book, "g2", GRANDCHILD, [[]]),
            operation(book, "d1", deep, [[], []], fails_at=1),
            operation(book, "d2", deep, [[]]),
            **options,
        )

    def check(world: World) -> None:
        assert only(world.log, "root", "c1", "g1", "d1") == [
            *["root 0", "c1 0", "g1 0", "d1 0", "d1 undo 0"],
            *["g1 undo 0", "c1 undo 0", "root undo 0"],
        ]
        assert only(world.log, "g1", "d2") == ["g1 0", "d2 0", "d2 undo 0", "g1 undo 0"]
        assert only(world.log, "c1", "g2") == ["c1 0", "g2 0", "g2 undo 0", "c1 undo 0"]
        assert only(world.log, "root", "c2") == ["root 0", "c2 0", "c2 undo 0", "root undo 0"]
        assert only(world.log, "g1", "g2")[-2:] == ["g1 undo 0", "g2 undo 0"]  # Siblings: first the one that failed.
        assert set(world.states().values()) == {State.ROLLED_BACK}

    world = everywhere(scenario, check)
    assert world.log == [
        *["root 0", "c1 0", "c2 0", "g1 0", "g2 0", "d1 0", "d1 undo 0", "d2 0"],
        *["d2 undo 0", "g1 undo 0", "g2 undo 0", "c1 undo 0", "c2 undo 0", "root undo 0"],
    ]


def test_equal_times_and_clocks_that_differ_change_nothing() -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        return world_of(
            book,
            operation(book, "root", ROOT, [[CHILD, CHILD], [CHILD], []], fails_at=2),
            operation(book, "a", CHILD, [[GRANDCHILD], []]),
            operation(book, "b", CHILD, [[], []]),
            operation(book, "leaf", GRANDCHILD, [[]]),
            **options,
        )

    plain = scenario()
    same = scenario(stamp=lambda now, lots: 7)
    assert (same.sequence(), same.log) == (plain.sequence(), plain.log)
    for seed in range(5):
        lots = random.Random(seed)
        apart = scenario(stamp=lambda now, _, lots=lots: now + lots.randint(-5_000_000, 5_000_000))
        assert (apart.sequence(), apart.log) == (plain.sequence(), plain.log)
        drawn = scenario(seed=seed, stamp=lambda now, _: 7)
        other = scenario(seed=seed)
        assert (drawn.sequence(), drawn.log) == (other.sequence(), other.log)
