"""What tests of what workflow code and steps say have in common."""

from __future__ import annotations

from typing import Any

from perdure import Retry, resource, step
from perdure.testing import Environment, VirtualClock


class World:
    """What steps may do is said here."""

    def __init__(self) -> None:
        self.is_mended = False
        self.lives = 0
        self.log: list[str] = []


@step(retry=Retry.never())
async def work(name: str, seconds: float = 0) -> str:
    await resource(VirtualClock).sleep(seconds)
    return name.upper()


class Odd:
    """What has no JSON form."""


async def said(env: Environment, run_id: str = "r", name: str = "log") -> list[Any]:
    items = [item async for item in env.engine.handle(run_id).stream(name, follow=False)]
    assert [item.offset for item in items] == list(range(1, len(items) + 1))
    return [item.value for item in items]


class Reversed:
    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]
