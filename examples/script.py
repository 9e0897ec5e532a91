from perdure import Blocking, Engine, Event, receive, step, workflow


class Paid(Event):
    amount: int


@step
def ship(order: str) -> str:
    print("shipping", order)
    return f"parcel of {order}"


@workflow
async def checkout(order: str) -> str:
    paid = await receive(Paid)
    return f"{await ship(order)}, paid {paid.amount}"


with Blocking(Engine("sqlite:///script.db")) as wait:
    engine = wait.client
    run = wait(engine.start(checkout("o-17"), id="o-17"))  # the second time it is the same run
    wait(engine.send(Paid(amount=100), to=run.id, key="payment of o-17"))  # and this was sent before
    print(wait(run.result(), timeout=60))
