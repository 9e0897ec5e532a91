"""The process that is killed: transfers between accounts, by transactional steps.
`python -m tests.transactions.transfers URL TRANSFERS`

Each run makes three transfers. One that was begun in an earlier life goes on; when all have ended, so does the process.
Every body of a step writes a byte to standard output, by which the parent chooses its moment.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from datetime import timedelta

from perdure import Engine, Limits, Retry, Workflow, current_step, step, workflow
from perdure.errors import StoreError

ACCOUNTS = 8
BALANCE = 1000
EACH = 3  # transfers of a run
LANES = 16
STARTED = b"."

TABLES = (
    "create table accounts (id integer primary key, balance integer)",
    # Without a key on purpose: what is done twice is to show.
    "create table transfers (run_id text, position text, amount integer)",
)
TAKE = "update accounts set balance = balance - {} where id = {}"
GIVE = "update accounts set balance = balance + {} where id = {}"
NOTE = "insert into transfers (run_id, position, amount) values ({}, {}, {})"
AGAIN = Retry(attempts=10, initial=timedelta(milliseconds=5))


@step(transactional=True, name="transfer", retry=AGAIN)
def transfer_plain(source: int, target: int, amount: int) -> int:
    os.write(sys.stdout.fileno(), STARTED)
    me = current_step()
    me.connection.execute(TAKE.format("?", "?"), (amount, source))
    me.connection.execute(GIVE.format("?", "?"), (amount, target))
    me.connection.execute(NOTE.format("?", "?", "?"), (me.run_id, me.position, amount))
    return amount


@step(transactional=True, name="transfer", retry=AGAIN)
async def transfer(source: int, target: int, amount: int) -> int:
    os.write(sys.stdout.fileno(), STARTED)
    me = current_step()
    # In the order of the accounts, so that two of them do not wait for each other.
    changes = sorted([(source, TAKE), (target, GIVE)])
    for account, change in changes:
        await me.connection.execute(change.format("$1", "$2"), amount, account)
    await me.connection.execute(NOTE.format("$1", "$2", "$3"), me.run_id, me.position, amount)
    return amount


def drawn(number: int) -> list[tuple[int, int, int]]:
    """The transfers of a run: from, to, and how much."""
    lot = random.Random(number)
    return [(*lot.sample(range(ACCOUNTS), 2), lot.randint(1, 50)) for _ in range(EACH)]  # type: ignore[misc]


@workflow(name="settle")
async def settle_plain(number: int) -> int:
    first, *others = drawn(number)
    paid = await transfer_plain(*first)
    return paid + sum(await asyncio.gather(*[transfer_plain(*other) for other in others]))


@workflow(name="settle")
async def settle(number: int) -> int:
    first, *others = drawn(number)
    paid = await transfer(*first)
    return paid + sum(await asyncio.gather(*[transfer(*other) for other in others]))


async def main(url: str, transfers: int) -> None:
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 3)  # the parent is gone
    call: Workflow[[int], int] = settle_plain if url.startswith("sqlite") else settle
    left = iter(range(transfers // EACH))

    async def settled(number: int) -> int:
        while True:
            try:
                return await (await engine.start(call(number), id=f"t-{number}")).result()
            except StoreError:  # The lease is short, and so is what the store takes for an answer in time.
                await asyncio.sleep(0.05)

    async def lane() -> None:
        for number in left:
            paid = await settled(number)
            if paid != sum(amount for _, _, amount in drawn(number)):
                raise AssertionError(f"run t-{number} gave {paid}")

    # These kills are no run's fault: however often one is hit in a row, it must not be set aside as poison.
    engine = Engine(url, workflows=[call], limits=Limits(recoveries_max=1_000_000), poll_s=0.05)
    async with engine, asyncio.TaskGroup() as lanes:
        for _ in range(LANES):
            lanes.create_task(lane())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
