"""Transactions in which users' code writes to tables of its own, together with what it came to: what functions' steps
and operations' steps share.

A failure of the store (it is busy, its connection broke under the code) is no attempt: the code runs again, in a new
transaction. If a transaction may have been committed, the store looks that up first. What the code raises while its
connection works is a failure like any other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import (
    _get_running_loop,  # pyright: ignore[reportPrivateUsage]
    _set_running_loop,  # pyright: ignore[reportPrivateUsage]
)
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NoReturn, Protocol

from msgspec import Struct

from perdure.errors import CommitRefused, Fenced, Misuse, OutcomeUnknown, StoreError
from perdure.kernel.records import Engine, Staged
from perdure.ports import Codec, PlainCodec, StepPlace, Store, Transacts

log = logging.getLogger("perdure")

_AGAIN_FIRST_S: Final = 0.01
_AGAIN_MAX_S: Final = 1.0  # between two requests to a store that did not get as far as to call the code,
_AGAIN_CALLED_MAX_S: Final = 30.0  # and between two calls: the code itself may be what breaks the database
_LOOK_S: Final = 1.0  # how often a thread that waits for the loop sees whether there still is one

# In all that a step sets off which holds the store's only writer: its name, until it has ended.
holds_writer: ContextVar[Callable[[], str]] = ContextVar("perdure_holds_writer", default=str)


class Fate:
    """Whether what an attempt wrote is to be committed. Whoever is first decides: the body that has come to its end, or
    whoever gives the attempt up. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = "open"

    def settle(self) -> bool:
        """It is to be committed; False if it was given up before."""
        with self._lock:
            if self._state == "open":
                self._state = "settled"
            return self._state == "settled"

    def give_up(self) -> bool:
        """It is not to be committed; False if it may have been."""
        with self._lock:
            if self._state == "open":
                self._state = "given up"
            return self._state == "given up"

    def reopen(self) -> bool:
        """Nothing was committed, and nothing is decided; False if it was given up."""
        with self._lock:
            if self._state == "settled":
                self._state = "open"
            return self._state == "open"


class Concluded(Struct, frozen=True, kw_only=True):
    """How an attempt ended. An error that is `final` is not one of the body's, and no reason to try again."""

    staged: Staged | None = None
    error: BaseException | None = None
    is_final: bool = False


class GivenUp(Exception):
    """Rolls back what an attempt wrote that nobody waits for any more."""


class CodecFailed(Exception):
    """The codec raised this."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Body(Protocol):
    """One call of users' code. `error` is what it raised, `is_final` if what it came to cannot be stored."""

    error: BaseException | None
    is_final: bool
    is_called: bool

    def plain(self, connection: Any, /) -> Staged:
        """In the store's own thread."""
        ...

    async def awaited(self, connection: Any, /) -> Staged:
        """On the loop."""
        ...


class Spot(Struct, frozen=True):
    """Where an attempt belongs."""

    run_id: str
    claim: int
    position: str
    name: str  # of the step


def check_form(takes: Transacts, name: str, *, is_async: bool) -> None:
    """Raise Misuse unless a store has transactions for a step of this form."""
    if takes == "no":
        raise Misuse(
            f"step {name!r} is transactional, and this engine's store has no transactions for steps: use a "
            "store on SQLite (sqlite:///…) or Postgres (postgresql://…), in tests too"
        )
    if takes == "plain" and is_async:
        raise Misuse(
            f"step {name!r} is transactional and async, and on SQLite nothing else is written before its "
            "transaction ends: make it a plain `def`, which uses sqlite3"
        )
    if takes == "async" and not is_async:
        raise Misuse(
            f"step {name!r} is transactional and a plain function, and on Postgres its connection is "
            "asyncpg's: make it an `async def`"
        )


async def transacted(
    *,
    store: Store,
    me: Callable[[], Engine],
    spot: Spot,
    fate: Fate,
    body: Callable[[], Body],
    check_fence: Callable[[], Awaitable[object]],
    is_dropped: Callable[[], bool],
    ended: Callable[[], None],
    again: Callable[[], None],
) -> Concluded:
    """Call a body in a transaction until its outcome is known. Never raises: whatever a body raises is its outcome.

    `ended` is called whenever the connection can no longer be used. `again` is called when the store has failed: the
    body may be called again, and what it did outside of the transaction must not count twice.
    """
    pause_s = _AGAIN_FIRST_S
    failures = 0
    is_unknown = False  # If so, nobody can give the attempt up until the store has answered.
    while True:
        attempt = body()
        try:
            staged = await _once(store, me(), spot, attempt)
        except BaseException as error:  # noqa: BLE001 - see above
            if not _is_of_the_store(error, attempt):
                failure = attempt.error if attempt.error is not None and isinstance(error, StoreError) else error
                is_final = attempt.is_final or (attempt.error is None and isinstance(error, Misuse))
                return Concluded(error=failure, is_final=is_final)
            failures += 1
            # One line for an outage, however often the store is asked meanwhile.
            log.log(
                logging.WARNING if failures == 1 else logging.DEBUG,
                "step %r of run %s: the store failed during its transaction, which is begun again until it succeeds;"
                " this is no attempt of the step. Check the database: %s",
                spot.name, spot.run_id, error,
            )  # fmt: skip
            is_fenced = isinstance(error, Fenced)
            is_unknown = isinstance(error, OutcomeUnknown) or (is_unknown and not attempt.is_called)
        else:
            if failures:
                log.info(
                    "step %r of run %s: its transaction is committed, after %d failures of the store",
                    spot.name, spot.run_id, failures,
                )  # fmt: skip
            return Concluded(staged=staged)
        finally:
            ended()
        if not is_unknown:
            fate.reopen()
        again()
        if is_fenced:
            await check_fence()
        if not is_dropped():
            await asyncio.sleep(pause_s)
        if is_dropped():
            return Concluded(error=GivenUp())
        pause_s = min(pause_s * 2, _AGAIN_CALLED_MAX_S if attempt.is_called else max(pause_s, _AGAIN_MAX_S))


def _is_of_the_store(error: BaseException, attempt: Body) -> bool:
    """Whether the store failed, and not the body: then the body is called again."""
    if error is attempt.error or not isinstance(error, StoreError) or isinstance(error, CommitRefused):
        return False
    if attempt.error is None:
        return True
    # The body failed on a connection that broke. Whether the connection is the reason shows when the body runs again,
    # unless it was stopped, or its result cannot be stored.
    return isinstance(attempt.error, Exception) and not isinstance(attempt.error, GivenUp) and not attempt.is_final


async def _once(store: Store, me: Engine, spot: Spot, body: Body) -> Staged:
    place = StepPlace(
        engine_id=me.id, epoch=me.epoch, run_id=spot.run_id, claim=spot.claim, position=spot.position
    )  # fmt: skip
    return await store.transact(place, body.plain if store.transacts == "plain" else body.awaited)


def encoded(codec: Codec, text: str, refuse: Callable[[BaseException], NoReturn]) -> str:
    """What is stored for a text. On the loop: a codec need not know of threads."""
    try:
        return codec.encode(text)
    except Exception as error:  # noqa: BLE001 - users' codecs may raise anything
        refuse(error)


def encoded_elsewhere(
    codec: Codec, loop: asyncio.AbstractEventLoop, text: str, refuse: Callable[[BaseException], NoReturn]
) -> str:
    """The same from another thread, which waits for the loop."""
    if type(codec) is PlainCodec:
        return text
    done: Future[str] = Future()

    def encode() -> None:
        try:
            done.set_result(codec.encode(text))
        except Exception as error:  # noqa: BLE001 - as above
            done.set_exception(error)

    loop.call_soon_threadsafe(encode)
    while not loop.is_closed():
        if wait([done], _LOOK_S).done:
            if (error := done.exception()) is not None:
                refuse(error)
            return done.result()
    raise GivenUp


class _NoLoop:
    """Stands where the running loop would, in a thread that must not wait for any."""

    def __init__(self, step: str) -> None:
        self._step = step

    def __getattr__(self, name: str) -> Any:
        raise Misuse(
            f"nothing can be awaited in the transactional step {self._step!r}, on which all else waits that is to be "
            "written: do that in another step"
        )


@contextmanager
def without_loop(step: str) -> Generator[None]:
    """Have asyncio refuse to run anything here."""
    before = _get_running_loop()
    _set_running_loop(_NoLoop(step))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        _set_running_loop(before)


__all__ = [
    "Body",
    "CodecFailed",
    "Concluded",
    "Fate",
    "GivenUp",
    "Spot",
    "check_form",
    "encoded",
    "encoded_elsewhere",
    "holds_writer",
    "transacted",
    "without_loop",
]
