"""A booking with three mistakes, which `explore` finds, and the same booking without them.

    python examples/explore.py

or, on the command line:

    perdure explore examples/explore.py:careless trip=rome --world examples/explore.py:Agency
"""

from __future__ import annotations

import asyncio
import random

from perdure import compensate, current_run, current_step, resource, step, workflow
from perdure.testing import explore


class Agency:
    """A fake of the services that the steps use. `explore` compares what it contains."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.rooms: set[str] = set()
        self.letters: dict[str, str] = {}


@step
async def charge(trip: str) -> None:
    resource(Agency).charges.append(trip)  # mistake: if the process dies now, the next one charges again


@step
async def charge_once(trip: str) -> None:
    key = current_step().idempotency_key
    if key not in (charges := resource(Agency).charges):
        charges.append(key)


@step
async def pay_back(trip: str) -> None:
    resource(Agency).charges.clear()


@step
async def book_room(trip: str) -> None:
    resource(Agency).rooms.add(trip)


@step
async def free_room(trip: str) -> None:
    resource(Agency).rooms.discard(trip)


@step
async def write_letter(trip: str, text: str) -> None:
    resource(Agency).letters[trip] = text


@step
async def confirm(trip: str) -> str:
    return f"{trip} is booked"


@workflow
async def careless(trip: str) -> str:
    await compensate(pay_back(trip))
    await charge(trip)
    await book_room(trip)  # mistake: nothing frees the room if a later step fails
    if random.random() < 0.5:  # mistake: after a crash the code may take the other way
        await write_letter(trip, "see you soon")
    return await confirm(trip)


@workflow
async def careful(trip: str) -> str:
    await compensate(pay_back(trip))
    await charge_once(trip)
    await compensate(free_room(trip))
    await book_room(trip)
    if current_run().random.random() < 0.5:  # drawn from the run: the same on every replay
        return await confirm(f"{trip}, with a window,")
    return await confirm(trip)


async def main() -> None:
    print(await explore(careless("rome"), workflows=[careless], world=Agency))
    print(await explore(careful("rome"), workflows=[careful], world=Agency))


if __name__ == "__main__":
    asyncio.run(main())
