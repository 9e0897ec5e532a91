"""Handlers that come while somebody waits, and handlers that are taken out and released, wherever the process dies."""

from __future__ import annotations

from typing import Any

from perdure.models.cooperation.message_events import State
from tests.cooperation.everywhere import Everywhere
from tests.cooperation.shop import Book, operation, topic
from tests.cooperation.world import World

ROOT, CHILD = topic("root"), topic("child")


def waiting_for(book: Book, *handlers: str, **options: Any) -> World:
    """An emitter that has gone on, since nobody handled its message then, and one that waits for these handlers."""
    book.world = world = World(operation(book, "root", ROOT, [[CHILD], []]), **options)
    world.emit(ROOT, {})
    world.run()
    for handler in handlers:
        world.registry[CHILD.name].add(handler)
    world.emit(ROOT, {})
    world.run()
    assert world.log == ["root 0", "root 1", "root 0"]
    return world


def undo(world: World, *handlers: str) -> World:
    """Undo the second emitter, and what others did for it outside."""
    world.roll_back(world.run_of("root", 1).lineage)
    world.run()
    for handler in handlers:
        world.complete_rollback(handler)
        world.run()
    return world


def test_who_registers_while_the_emitter_waits_is_waited_for(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        world = waiting_for(book, "absent", **options)
        world.register(CHILD, "late")
        world.run()
        for handler in ("absent", "late"):
            assert world.log == ["root 0", "root 1", "root 0"]
            world.complete(handler)
            world.run()
        return undo(world, "absent", "late")

    def check(world: World) -> None:
        assert world.log == ["root 0", "root 1", "root 0", "root 1", "root undo 1", "root undo 0"]
        assert [run.handler for run in world.runs] == ["root", "root", "absent", "late"]
        assert [world.state("root", number) for number in range(2)] == [State.COMMITTED, State.ROLLED_BACK]
        assert {world.state("absent"), world.state("late")} == {State.ROLLED_BACK}

    everywhere(scenario, check, seeds=4)


def test_a_service_that_comes_while_the_emitter_waits_takes_part(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        world = waiting_for(book, "absent", **options)
        world.come(operation(book, "late", CHILD, [[]]))
        world.run()
        assert world.log[3:] == ["late 0"]
        world.complete("absent")
        world.run()
        return undo(world, "absent")

    def check(world: World) -> None:
        assert world.log[3:] == ["late 0", "root 1", "root undo 1", "late undo 0", "root undo 0"]
        assert [run.handler for run in world.runs] == ["root", "root", "absent", "late"]
        assert {world.state("absent"), world.state("late"), world.state("root", 1)} == {State.ROLLED_BACK}

    everywhere(scenario, check, seeds=4)


def test_who_is_released_never_begins_and_the_others_are_undone(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        world = waiting_for(book, "absent", "slow", **options)
        world.retire(CHILD, "absent", release=True)
        world.run()
        assert world.log[3:] == []
        world.complete("slow")
        world.retire(CHILD, "slow", release=True)
        world.run()
        return undo(world, "slow")

    def check(world: World) -> None:
        assert world.log[3:] == ["root 1", "root undo 1", "root undo 0"]
        assert world.state("absent") is State.DISMISSED
        assert {world.state("slow"), world.state("root", 1)} == {State.ROLLED_BACK}

    everywhere(scenario, check, seeds=4)


def test_all_who_wait_are_told_of_a_handler_and_released_from_it(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        world = waiting_for(book, "absent", **options)
        world.emit(ROOT, {})
        world.run()
        world.register(CHILD, "late")
        world.run()
        world.retire(CHILD, "absent", release=True)
        world.run()
        assert world.log[3:] == ["root 0"]
        world.retire(CHILD, "late", release=True)
        return world.run()

    def check(world: World) -> None:
        assert world.log[3:] == ["root 0", "root 1", "root 1"]
        assert sorted(run.handler for run in world.runs) == ["absent"] * 2 + ["late"] * 2 + ["root"] * 3
        for handler in ("absent", "late"):
            assert {world.state(handler, number) for number in range(2)} == {State.DISMISSED}
        assert {world.state("root", number) for number in range(3)} == {State.COMMITTED}

    everywhere(scenario, check, seeds=4)
