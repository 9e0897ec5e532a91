"""Steps that wait for a thread while their engine is cut off: once others may have done them, they do not begin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure import Engine, Limits, Retry, step, workflow
from perdure.cooperation import Operation, Scope, Topic
from tests.storage.postgres.proxy import proxy_to

JOBS = Topic("jobs", str)


class Place:
    """Where bodies tell that they began. The first one keeps the only thread until it is let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.is_kept = threading.Event()
        self.may_go_on = threading.Event()

    def body(self, name: str) -> None:
        self.begun.append(name)
        if name == "first" and not self.is_kept.is_set():
            self.is_kept.set()
            self.may_go_on.wait(60)


def as_function(place: Place) -> tuple[Any, Callable[[Engine, str], Any]]:
    @step(retry=Retry.never())
    def work(name: str) -> None:
        place.body(name)

    @workflow(name="works")
    async def works(name: str) -> None:
        await work(name)

    async def begin(engine: Engine, name: str) -> None:
        await engine.start(works(name), id=name)

    return works, begin


def as_operation(place: Place) -> tuple[Any, Callable[[Engine, str], Any]]:
    works = Operation("works", JOBS)

    @works.step
    def work(scope: Scope, name: str) -> None:
        place.body(name)

    async def begin(engine: Engine, name: str) -> None:
        await engine.emit(JOBS, name, id=name)

    return works, begin


@pytest.mark.parametrize("model", [as_function, as_operation])
async def test_a_step_that_waits_for_a_thread_does_not_begin_once_others_may_have_done_it(
    empty_schema: Callable[[], str], model: Any
) -> None:
    url, place = f"{empty_schema()}&lease=0.5", Place()
    works, begin = model(place)
    options: dict[str, Any] = {"workflows": [works], "limits": Limits(grace_s=0, threads_max=1, recoveries_max=1000)}
    async with (
        proxy_to(url, urlsplit(url).port or 0) as (proxy, detour),
        Engine(detour, **options, poll_s=None) as cut_off,
    ):
        for name in ("first", "second"):
            await begin(cut_off, name)
        await until(place.is_kept.is_set)
        proxy.freeze()
        async with Engine(url, **options, poll_s=0.05):
            await until(lambda: place.begun == ["first", "first", "second"])
            place.may_go_on.set()  # Its thread is free, and it has not heard of anything yet.
            proxy.release()
            await begin(cut_off, "third")
            await until(lambda: "third" in place.begun)
    assert place.begun == ["first", "first", "second", "third"]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
