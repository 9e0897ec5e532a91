"""Those who ask the fleet for something: `python -m tests.chaos.callers URL FOLDER INDEX OF AT_ONCE`

Ids and keys follow from a number, so a process that follows a killed one asks again for all that has not ended.
Standard input tells up to which number they may go by now.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from perdure.client import Client
from perdure.cooperation import RootHandle
from perdure.engine import AnyClient
from perdure.errors import RunFailed, RunFinished, ScopeFailed, StoreBusy, StoreUnavailable
from tests.chaos import ledger, record
from tests.chaos.record import AGAIN, ASKED, ENDED, REFUSED, STARTED, Record
from tests.chaos.work import DOOMED, KINDS, NOTES, ORDERS, Order, Paid, Work
from tests.fleet.load import MESSAGES, OPEN, opened

PAUSE_S = 0.05
REFUSALS_MAX = 20  # after which a number is given up, for the others to get their turn


def id_of(number: int) -> str:
    return f"c-{number}"


def number_of(id: str) -> int:
    return int(id.removeprefix("c-"))


def kind_of(number: int) -> str:
    return KINDS[number % len(KINDS)]


class Caller:
    def __init__(self, client: AnyClient, work: Work, record: Record) -> None:
        self._client = client
        self._work = work
        self._record = record

    async def see_through(self, number: int) -> None:
        """Ask for what a number stands for, until it has ended."""
        kind, id = kind_of(number), id_of(number)
        self._record.write(ASKED, id, name=kind)
        outcome = await self._answered(id, "run", lambda: self._ask(number, kind, id))
        self._record.write(ENDED, id, name=kind, text=str(outcome))

    async def _ask(self, number: int, kind: str, id: str) -> object:
        if kind in ("order", "doomed_order"):
            return await self._order(number, kind, id)
        call = (
            self._work.graph({"number": number, "items": [*range(number, number + NOTES)]}) if kind == "graph" else None
        )
        run = await self._client.start(call or self._work.functions[kind](number), id=id)
        self._record.write(STARTED, id, name=kind)
        if kind == "is_paid":
            await self._pay(number, id)
        try:
            result = await run.result()
        except RunFailed as error:
            if kind != "gives_up" or "as it is to be" not in str(error):
                raise
            return "failed as it is to"
        check(result, kind, number)
        return "as expected"

    async def _pay(self, number: int, id: str) -> None:
        try:
            await self._client.send(Paid(amount=number), to=id, key=f"pay-{number}")
        except RunFinished:
            return  # It was paid by the process before.

    async def _order(self, number: int, kind: str, id: str) -> object:
        is_doomed = kind == "doomed_order"
        order = Order(number=number + DOOMED if is_doomed else number)
        root: RootHandle = await self._client.emit(ORDERS, order, id=id)
        self._record.write(STARTED, id, name=kind)
        try:
            await root.finished()
        except ScopeFailed as error:
            if not is_doomed or "as it is to be" not in str(error):
                raise
            return "undone as it is to"
        assert not is_doomed, f"order {id} is doomed, and was placed"
        return "as expected"

    async def _answered(self, id: str, name: str, request: Callable[[], Awaitable[Any]]) -> Any:
        refusals = 0
        while refusals < REFUSALS_MAX:
            try:
                return await request()
            except (StoreBusy, StoreUnavailable) as error:
                self._record.write(AGAIN, id, name=name, text=f"{type(error).__name__}: {error}"[:300])
            except Exception as error:  # noqa: BLE001 - whatever it is, it is to be told
                refusals += 1
                self._record.write(REFUSED, id, name=name, text=f"{type(error).__name__}: {error}"[:1000])
                MESSAGES.exception("a caller was refused")
            await asyncio.sleep(PAUSE_S)
        return "given up"


def check(result: Any, kind: str, number: int) -> None:
    expected: dict[str, Any] = {
        "settles": (NOTES + 1) * (number + 3),
        "is_paid": 2 * number + 2,
        "has_children": 2 * number + 5,
        ledger.WORKFLOW: number,
        "graph": {"noted": [number + item for item in range(1, NOTES + 1)], "last": number + 1},
    }
    if kind == "graph":
        result["noted"].sort()
    assert result == expected[kind], f"{kind} {number} gave {result}"


class Queue:
    """Numbers that are still to be asked for, up to a limit that grows."""

    def __init__(self, numbers: range, ended: set[str]) -> None:
        self._numbers = iter(number for number in numbers if id_of(number) not in ended)
        self._limit = 0
        self._changed = asyncio.Condition()
        self._next: int | None = next(self._numbers)

    async def allow(self, limit: int) -> None:
        async with self._changed:
            self._limit = limit
            self._changed.notify_all()

    async def take(self) -> int:
        async with self._changed:
            await self._changed.wait_for(lambda: self._next is not None and self._next < self._limit)
            number, self._next = self._next, next(self._numbers)
        assert number is not None
        return number


async def main(url: str, folder: Path, index: int, of: int, at_once: int) -> None:
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    work = Work(is_plain=url.startswith("sqlite"))
    ended = {line.run_id for line in record.read(folder) if line.what == ENDED}
    client = await opened(lambda: Client(url))
    MESSAGES.info(OPEN)
    caller = Caller(client, work, Record(folder, "caller"))
    queue = Queue(range(index, sys.maxsize, of), ended)

    async def lane() -> None:
        while True:
            await caller.see_through(await queue.take())

    async with asyncio.TaskGroup() as group:
        lanes = [group.create_task(lane()) for _ in range(at_once)]
        async for word in words:
            await queue.allow(int(word))
        for one in lanes:
            one.cancel()
    await client.shutdown()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(message)s", level=logging.INFO)
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:6])))
