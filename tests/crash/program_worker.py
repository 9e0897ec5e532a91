"""A process with a hash seed of its own that brings interrupted programs to their end.

Reads a line of JSON per program (the database and the virtual time at the crash) and answers with a line: the trace.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from perdure.testing import VirtualClock
from perdure.values.times import to_datetime
from tests.crash.ledger import Ledger
from tests.crash.programs import Trace, environment, trace


class Order(msgspec.Struct):
    url: str
    now: int


async def finish(order: Order) -> Trace:
    ledger = Ledger()
    async with environment(ledger, store=order.url, clock=VirtualClock(to_datetime(order.now))) as env:
        return await trace(env.engine)


def main() -> None:
    for line in sys.stdin.buffer:
        answer = asyncio.run(finish(msgspec.json.decode(line, type=Order)))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
