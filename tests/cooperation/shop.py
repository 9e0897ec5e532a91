"""Operations for the scenarios: each tells the world what it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perdure.cooperation import Failure, Operation, Scope, Strategy, Topic
from tests.cooperation.world import World

Teller = Callable[[str], None]


class Book:
    """Where steps write down what they do; the world that is running reads it."""

    world: World

    def did(self, what: str) -> None:
        self.world.did(what)


def operation(
    book: Book,
    name: str,
    topic: Topic[dict[str, Any]],
    steps: Sequence[Sequence[Topic[dict[str, Any]]]],
    *,
    fails_at: int | None = None,
    undo_fails_at: int | None = None,
    policy: Any = "halt",
    strategy: Strategy | None = None,
) -> Operation[dict[str, Any]]:
    """An operation whose steps emit on these topics, with a rollback each; the step at `fails_at` raises."""
    made = Operation(name, topic, policy=policy, strategy=strategy)
    for number, topics in enumerate(steps):
        _add(book, made, number, topics, number == fails_at, number == undo_fails_at)
    return made


def _add(
    book: Book,
    made: Operation[dict[str, Any]],
    number: int,
    topics: Sequence[Topic[dict[str, Any]]],
    fails: bool,
    undo_fails: bool,
) -> None:
    def invoke(scope: Scope, message: dict[str, Any]) -> None:
        book.did(f"{made.name} {number}")
        for topic in topics:
            scope.emit(topic, {})
        if fails:
            raise ValueError(f"{made.name} failed")

    step = made.step(name=f"s{number}")(invoke)

    @step.rollback
    def undo(scope: Scope, message: dict[str, Any], cause: Failure) -> None:
        book.did(f"{made.name} undo {number}")
        if undo_fails:
            raise OSError(f"{made.name} cannot undo")


def topic(name: str) -> Topic[dict[str, Any]]:
    return Topic(name, dict[str, Any])
