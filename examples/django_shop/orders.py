"""What happens to an order, from the first page to the parcel."""

from perdure import Event, receive, step, workflow


class Paid(Event):
    amount: int


@step
def ship(order: str) -> str:
    return f"parcel of {order}"


@workflow
async def checkout(order: str) -> str:
    paid = await receive(Paid)
    return f"{await ship(order)}, paid {paid.amount}"
