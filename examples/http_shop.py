"""A shop that is asked over HTTP. Needs perdure[http]; what asks it could be written in any language."""

import asyncio
import json
from typing import Any
from urllib.request import Request, urlopen

from perdure import Engine, Event, receive, step, workflow
from perdure.http import serving


class Paid(Event):
    amount: int


@step
async def ship(order: str) -> str:
    return f"parcel of {order}"


@workflow
async def checkout(order: str) -> str:
    paid = await receive(Paid)
    return f"{await ship(order)}, paid {paid.amount}"


def ask(url: str, body: dict[str, Any] | None = None, key: str = "") -> Any:
    headers = {"content-type": "application/json"} | ({"idempotency-key": key} if key else {})
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, headers), timeout=60) as answer:
        return json.load(answer)


def buy(api: str) -> None:
    """What a customer's program does. However often it is run, there is one order and one payment."""
    run = ask(f"{api}/runs", {"workflow": "checkout", "input": {"order": "o-17"}, "id": "o-17"})
    if run["output"] is None:
        ask(f"{api}/runs/o-17/events", {"name": "Paid", "value": {"amount": 100}}, key="payment of o-17")
    with urlopen(f"{api}/runs/o-17/changes", timeout=60) as changes:  # until the run has ended
        became = [json.loads(line[6:])["became"] for line in changes if line.startswith(b"data: ")]
    print("the run has", became[-1])
    print(ask(f"{api}/runs/o-17")["output"])


async def main() -> None:
    async with Engine("sqlite:///http_shop.db") as engine, serving(engine, port=0) as url:
        await asyncio.to_thread(buy, f"{url}/api/v1")


asyncio.run(main())
