"""Sleeps of operations, and periodic operations.

A sleep is a message on a topic without handlers. The message says until when its emitter waits. readiness.py reads this
time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from perdure.errors import InvalidDefinition
from perdure.models.cooperation.context import ROUNDS
from perdure.models.cooperation.message_events import Message
from perdure.models.cooperation.scope import Scope
from perdure.models.cooperation.topics import Topic
from perdure.values.arguments import Duration

M = TypeVar("M")


class _Sleep(Struct, frozen=True):
    until: int


def wake_of(message: Message) -> int:
    """Return the time at which a sleep ends, in microseconds since the epoch. `message` is the sleep's message."""
    return msgspec.json.decode(message.payload, type=_Sleep).until


def lasting(duration: Duration | Callable[[Any], Duration]) -> Callable[[Scope, Any], None]:
    def sleep(scope: Scope, message: Any) -> None:
        scope.sleep(duration(message) if callable(duration) else duration)

    return sleep


def until(time: datetime | Callable[[Any], datetime]) -> Callable[[Scope, Any], None]:
    if not callable(time) and getattr(time, "tzinfo", None) is None:
        raise InvalidDefinition(f"a time to wait for is a datetime with a time zone, or gives one, not {time!r:.80}")

    def sleep(scope: Scope, message: Any) -> None:
        scope.sleep_until(time if isinstance(time, datetime) else time(message))

    return sleep


def next_round(topic: Topic[M], name: str, count: int) -> Callable[[Scope, M], None]:
    """Return the step with which a periodic operation emits its message again, until the operation has run `count`
    times.

    The message is emitted on the global scope, before the run does its own work.
    """

    def emit_again(scope: Scope, message: M) -> None:
        rounds = scope.get(ROUNDS) or {}
        done = rounds.get(name, 0) + 1
        scope.put(ROUNDS, {**rounds, name: done})
        if done < count:
            _ = scope.emit_globally(topic, message, tokens=scope.tokens)

    return emit_again
