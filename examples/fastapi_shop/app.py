"""A shop behind FastAPI: `uvicorn app:app`. The engine lives as long as the app does, on its event loop.

If the workflows are to run elsewhere, take a Client in place of the Engine: all else stays as it is.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request

from perdure import Engine, Event, receive, step, workflow
from perdure.errors import RunNotFound


class Paid(Event):
    amount: int


@step
async def ship(order: str) -> str:
    return f"parcel of {order}"


@workflow
async def checkout(order: str) -> str:
    paid = await receive(Paid)
    return f"{await ship(order)}, paid {paid.amount}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Engine("sqlite:///shop.db", workflows=[checkout]) as app.state.engine:
        yield


def engine_of(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


app = FastAPI(lifespan=lifespan)
Shop = Annotated[Engine, Depends(engine_of)]


@app.post("/orders/{order}", status_code=202)
async def place(order: str, shop: Shop) -> str:
    run = await shop.start(checkout(order), id=order)
    return run.id


@app.post("/orders/{order}/payment", status_code=202)
async def pay(order: str, amount: int, shop: Shop) -> str:
    try:
        await shop.send(Paid(amount=amount), to=order, key=f"payment of {order}")
    except RunNotFound as error:
        raise HTTPException(404, "there is no such order") from error
    return order


@app.get("/orders/{order}")
async def show(order: str, shop: Shop) -> str:
    run = await shop.runs.get(order)
    if run is None:
        raise HTTPException(404, "there is no such order")
    return run.status


@app.get("/orders/{order}/receipt")
async def receipt(order: str, shop: Shop) -> str:
    result: str = await shop.handle(order).result()
    return result
