"""That those who wait are to be told of a new handler stands in the store until they have been."""

from __future__ import annotations

from collections.abc import Callable

from perdure import Client
from perdure.kernel.ops import RegisterHandlers
from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.ports import Store, new_id

PAIR = ("orders", "approval")


def registry(client: Client) -> HandlerRegistry:
    return HandlerRegistry(client.session.store, client.session.coordinator.submit, new_id)


async def test_a_handler_that_is_registered_again_meanwhile_is_still_to_be_told_of(
    make_store: Callable[[], Store],
) -> None:
    """One process tells those who wait; then the handler is retired and registered again; then the first strikes out
    what it has told them of."""
    async with Client(make_store()) as client:
        teller, other, last = (registry(client) for _ in range(3))
        await teller.register([PAIR], 1)
        told = teller.unannounced
        assert [mark[:2] for mark in told] == [PAIR]
        await other.retire([PAIR], 2)
        await other.register([PAIR], 3)
        await teller.announced(told, 4)
        await last.load()
        assert {mark[:2] for mark in last.unannounced} == {PAIR}
        await other.announced(last.unannounced, 5)
        assert other.unannounced == frozenset()
        assert set(other.topics) == {PAIR[0]}


async def test_what_an_earlier_version_has_left_to_be_told_is_told(make_store: Callable[[], Store]) -> None:
    async with Client(make_store()) as client:
        left = RegisterHandlers(run_id="", at=1, handlers=(PAIR, ("perdure.untold", '["orders","approval"]')))
        await client.session.coordinator.submit(left)
        book = registry(client)
        await book.load()
        assert {mark[:2] for mark in book.unannounced} == {PAIR}
        await book.announced(book.unannounced, 2)
        assert book.unannounced == frozenset()
