"""What a step cannot ask of its scope: it fails with a reason, on every store alike, and holds nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Limits
from perdure.cooperation import Key, Operation, Scope, go_to
from perdure.errors import InvalidArguments, Misuse, ScopeFailed
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic

ROOT, CHILD = topic("root"), topic("child")
NOTE: Any = Key("misused.note", str)
Message = dict[str, Any]

MISUSES: dict[str, tuple[Callable[[Scope], Any], str]] = {
    "a sleep without end": (lambda scope: scope.sleep(timedelta.max), "beyond the year 9999"),
    "a sleep of a text": (lambda scope: scope.sleep("5"), "duration is a duration"),  # type: ignore[arg-type]
    "a name with NUL": (lambda scope: scope.return_value("a\0", 1), "name of a return value must be a text"),
    "half a character": (lambda scope: scope.return_value("\ud800", 1), "name of a return value must be a text"),
    "a name that is none": (lambda scope: scope.return_value(5, 1), "name is a text, not 5"),  # type: ignore[arg-type]
    "a long name": (lambda scope: scope.return_value("a" * 501, 1), "return value must be a text of 1 to 500"),
    "a large value": (lambda scope: scope.return_value("a", "x" * 2000), "the return value 'a' has 2,002 bytes"),
    "a large context": (lambda scope: scope.put(NOTE, "x" * 2000), "the context has 2,0"),
    "a large message": (lambda scope: scope.emit(CHILD, {"a": "x" * 2000}) and None, "a message on topic 'child' has"),
    "no topic": (lambda scope: scope.emit("child", {}) and None, "topic is a Topic, not"),  # type: ignore[arg-type]
    "no context": (
        lambda scope: scope.emit(CHILD, {}, context={"a": 1}) and None,  # type: ignore[arg-type]
        "context is a Context",
    ),
    "a step that is False": (lambda scope: go_to(False), "go_to.*: step is a whole number .*, not False"),
}


@pytest.mark.parametrize("what", MISUSES)
async def test_a_step_that_asks_for_what_cannot_be_fails(source: StoreSource, what: str) -> None:
    asks, match = MISUSES[what]
    root = Operation[Message]("root", ROOT)

    @root.step
    async def misuses(scope: Scope, message: Message) -> Any:
        return asks(scope)

    async with Environment([root], source, limits=Limits(payload_bytes_max=1000)) as env:
        emitted = await env.engine.emit(ROOT, {})
        with pytest.raises(ScopeFailed, match=match):
            await emitted.finished()


async def test_a_scope_that_is_used_after_its_step_has_ended(source: StoreSource) -> None:
    """What such a step asks for would be lost in silence."""
    root, left, refused = Operation[Message]("root", ROOT), list[Scope](), list[str]()

    @root.step
    async def leaves_its_scope(scope: Scope, message: Message) -> None:
        left.append(scope)

    @root.step
    async def uses_it(scope: Scope, message: Message) -> None:
        (old,) = left
        for use in (
            lambda: old.emit(CHILD, {}),
            lambda: old.emit_globally(CHILD, {}),
            lambda: old.return_value("a", 1),
            lambda: old.put(NOTE, "a"),
            lambda: old.sleep(timedelta(seconds=1)),
        ):
            with pytest.raises(Misuse, match=r"'leaves_its_scope' of 'root' .* after it has ended") as raised:
                use()
            refused.append(str(raised.value))
        assert old.get(NOTE) is None

    async with Environment([root], source) as env:
        await (await env.engine.emit(ROOT, {})).finished()
        assert len(refused) == 5


async def test_what_is_no_topic_and_no_context_cannot_be_emitted_from_outside() -> None:
    async with Environment([]) as env:
        no_topic: Any = 5
        no_context: Any = {"a": 1}
        with pytest.raises(InvalidArguments, match=r"topic is a Topic or a text, not 5"):
            await env.engine.emit(no_topic, {})
        with pytest.raises(InvalidArguments, match=r"the topic 'root' has no handler"):
            await env.engine.emit("root", {})
        with pytest.raises(InvalidArguments, match="context is a Context"):
            await env.engine.emit(ROOT, {}, context=no_context)
        await asyncio.sleep(0)
