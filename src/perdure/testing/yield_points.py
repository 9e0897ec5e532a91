"""Yield points: points at which a test can stop an op. With them, two racing ops meet in a chosen order.

An op passes four points, which are named after it. "send.submit" comes before the op is queued, and
"send.before_commit" when its batch is decided. "send.committed" comes before any reply, and "send.done" when the op's
effects have begun. The points of all other ops of `perdure.kernel.ops` have the same endings. The ops are start,
advance (a run went on), due (a timer among events), cancel, expire, wake, release and so on. A batch passes one more
point, "batch.take", before its ops are taken from the queue. While the batch is held there, further ops can be queued.
They are in the batch too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from contextlib import contextmanager

__all__ = ["Held", "YieldPoints"]


from perdure.values.arguments import checked


class Held:
    """A point at which ops must wait."""

    def __init__(self, point: str, run: str | None) -> None:
        self.point = point
        self.run = run
        self._arrival = asyncio.Event()
        self._release = asyncio.Event()

    async def reached(self) -> None:
        """Wait until an op has reached the point."""
        await self._arrival.wait()

    @property
    def is_reached(self) -> bool:
        return self._arrival.is_set()

    def release(self) -> None:
        """Let the waiting op go on, and let later ops pass. Idempotent."""
        self._release.set()

    def arrive(self) -> None:
        self._arrival.set()

    def fits(self, point: str, run_id: str) -> bool:
        return point == self.point and self.run in (None, run_id) and not self._release.is_set()

    def __await__(self) -> Generator[object, None, object]:
        return self._release.wait().__await__()


@checked
class YieldPoints:
    """Stops ops at chosen points, and records every point that ops have passed. Pass it to an engine as its `probe`.

        points = YieldPoints()
        async with Environment([checkout], autojump_s=None, probe=points) as env:
            run = await env.engine.start(checkout("o-17"), id="o-17")
            with points.hold("send.before_commit") as held:
                sending = asyncio.create_task(env.engine.send(Paid(amount=100), to="o-17"))
                await held.reached()
                cancelling = asyncio.create_task(env.engine.handle("o-17").cancel())  # comes second
            assert await sending == Delivered(("o-17",))
            assert await cancelling

    While a batch is stopped, nothing else is committed, so the test must not wait for another commit. The engine's own
    ops (advance, due, wake, release) are recorded at ".submit", but cannot be stopped there. In an Environment with
    `autojump_s=None`, virtual time stands still while an op is stopped.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []  # (point, run id), in order
        self._held: list[Held] = []
        self._awaited: list[tuple[str, str | None, asyncio.Future[None]]] = []

    @contextmanager
    def hold(self, point: str, *, run: str | None = None) -> Generator[Held]:
        """Stop ops at this point until the block ends or `release` is called.

        With `run`, stop only ops of that run.
        """
        held = Held(point, run)
        self._held.append(held)
        try:
            yield held
        finally:
            self._held.remove(held)
            held.release()

    async def passed(self, point: str, *, run: str | None = None) -> None:
        """Wait until the next op passes this point."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.append((point, run, future))
        await future

    def reached(self, point: str, run_id: str) -> Awaitable[object] | None:
        """Note that an op has reached a point.

        The engine calls this. If possible, the engine awaits the result before the op goes on.
        """
        self.seen.append((point, run_id))
        for awaited in list(self._awaited):
            name, run, future = awaited
            if name == point and run in (None, run_id):
                self._awaited.remove(awaited)
                if not future.done():
                    future.set_result(None)
        for held in self._held:
            if held.fits(point, run_id):
                held.arrive()
                return held
        return None
