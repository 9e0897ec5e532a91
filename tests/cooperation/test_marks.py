"""That those who wait are to be told of a new handler stands in the store until they have been."""

from __future__ import annotations

from collections.abc import Callable

from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.ports import Store, new_id

PAIR = ("orders", "approval")


async def test_a_handler_that_is_registered_again_meanwhile_is_still_to_be_told_of(
    make_store: Callable[[], Store],
) -> None:
    """One process tells those who wait; then the handler is retired and registered again; then the first strikes out
    what it has told them of."""
    store = make_store()
    await store.open()
    try:
        teller, other, last = (
            HandlerRegistry(store, new_id),
            HandlerRegistry(store, new_id),
            HandlerRegistry(store, new_id),
        )
        await teller.register([PAIR], 1)
        told = teller.unannounced
        assert [mark[:2] for mark in told] == [PAIR]
        await store.unregister(*PAIR, at=2)
        await other.register([PAIR], 3)
        await teller.told(told, 4)
        await last.load()
        assert {mark[:2] for mark in last.unannounced} == {PAIR}
        await other.told(last.unannounced, 5)
        assert other.unannounced == frozenset()
        assert set(other.topics) == {PAIR[0]}
    finally:
        await store.close()


async def test_what_an_earlier_version_has_left_to_be_told_is_told(make_store: Callable[[], Store]) -> None:
    store = make_store()
    await store.open()
    try:
        await store.register([PAIR, ("perdure.untold", '["orders","approval"]')], at=1)
        book = HandlerRegistry(store, new_id)
        await book.load()
        assert {mark[:2] for mark in book.unannounced} == {PAIR}
        await book.told(book.unannounced, 2)
        assert book.unannounced == frozenset()
    finally:
        await store.close()
