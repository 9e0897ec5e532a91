"""Transactions in which users' code writes to its own tables. The same transaction stores the code's result. The steps
of functions and of operations share this module.

A failure of the store does not count as an attempt. If the store is busy, or if the connection broke, the code runs
again in a new transaction. If the transaction may have been committed, the store first finds out whether it was. If the
code raises an error while its connection works, the attempt has failed as usual.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import (
    _get_running_loop,  # pyright: ignore[reportPrivateUsage]
    _set_running_loop,  # pyright: ignore[reportPrivateUsage]
)
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NoReturn, Protocol

from msgspec import Struct

from perdure.coordinator.port import CoordinatorPort
from perdure.errors import CommitRefused, Fenced, Misuse, OutcomeUnknown, StoreError
from perdure.kernel.rows import Engine, Staged
from perdure.ports import Codec, PlainCodec, StepPlace, Store, Transacts

log = logging.getLogger("perdure")

_AGAIN_FIRST_S: Final = 0.01
_AGAIN_MAX_S: Final = 1.0  # the longest pause after the store failed before it called the code
# the longest pause between two calls of the code, because the code itself may be what breaks the database
_AGAIN_CALLED_MAX_S: Final = 30.0
_LOOK_S: Final = 1.0  # how often a thread that waits for the loop checks whether the loop is closed

# Returns the name of the step that holds the store's only writer, until that step has ended. It is set in the context
# of the step, so everything that the step starts sees it.
holds_writer: ContextVar[Callable[[], str]] = ContextVar("perdure_holds_writer", default=str)


class Fate:
    """Decides whether the writes of an attempt are committed. The first decision counts. There are two: `settle`, by
    the body that has ended, and `give_up`, by the code that stops the attempt. It can be used from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = "open"

    def settle(self) -> bool:
        """Decide that the writes are committed. Returns False if the attempt was given up before."""
        with self._lock:
            if self._state == "open":
                self._state = "settled"
            return self._state == "settled"

    def give_up(self) -> bool:
        """Decide that the writes are not committed. Returns False if the writes may have been committed."""
        with self._lock:
            if self._state == "open":
                self._state = "given up"
            return self._state == "given up"

    def reopen(self) -> bool:
        """Undo a `settle`, because nothing was committed. Returns False if the attempt was given up."""
        with self._lock:
            if self._state == "settled":
                self._state = "open"
            return self._state == "open"


class Concluded(Struct, frozen=True, kw_only=True):
    """The end of an attempt. If `is_final`, the error did not come from the body, and no retry follows."""

    staged: Staged | None = None
    error: BaseException | None = None
    is_final: bool = False


class GivenUp(Exception):
    """Raised to roll back the writes of an attempt that was given up."""


class CodecFailed(Exception):
    """The codec has raised `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Body(Protocol):
    """One call of users' code. `error` is the error that the code raised. `is_final` says that the code's result cannot
    be stored.
    """

    error: BaseException | None
    is_final: bool
    is_called: bool

    def plain(self, connection: Any, /) -> Staged:
        """Call the code in the store's own thread."""
        ...

    async def awaited(self, connection: Any, /) -> Staged:
        """Call the code on the event loop."""
        ...


class Spot(Struct, frozen=True):
    """The run and the step that an attempt belongs to."""

    run_id: str
    claim: int
    position: str
    name: str  # the name of the step


def check_form(takes: Transacts, name: str, *, is_async: bool) -> None:
    """Check that the store has transactions for this form of function (plain or async). Raises Misuse."""
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
    coordinator: CoordinatorPort,
    spot: Spot,
    fate: Fate,
    body: Callable[[], Body],
    is_dropped: Callable[[], bool],
    ended: Callable[[], None],
    again: Callable[[], None],
) -> Concluded:
    """Call a body in a transaction until the outcome of the transaction is known.

    Never raises. An error that the body raises is part of the result.

    `ended` is called each time the connection can no longer be used. `again` is called when the store has failed. After
    that, the body may be called again. Its effects outside the transaction must not count twice.
    """
    pause_s = _AGAIN_FIRST_S
    failures = 0
    is_unknown = False  # if True, the attempt cannot be given up before the store has answered
    while True:
        attempt = body()
        try:
            staged = await _once(store, coordinator.engine, spot, attempt)
        except BaseException as error:  # noqa: BLE001 - see above
            if not _is_of_the_store(error, attempt):
                failure = attempt.error if attempt.error is not None and isinstance(error, StoreError) else error
                is_final = attempt.is_final or (attempt.error is None and isinstance(error, Misuse))
                return Concluded(error=failure, is_final=is_final)
            failures += 1
            # Only the first failure is logged as a warning. So an outage logs one warning, however often the store is
            # asked.
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
            await coordinator.check_fence()
        if not is_dropped():
            await asyncio.sleep(pause_s)
        if is_dropped():
            return Concluded(error=GivenUp())
        pause_s = min(pause_s * 2, _AGAIN_CALLED_MAX_S if attempt.is_called else max(pause_s, _AGAIN_MAX_S))


def _is_of_the_store(error: BaseException, attempt: Body) -> bool:
    """Return whether the store failed, and not the body. If so, the body is called again."""
    if error is attempt.error or not isinstance(error, StoreError) or isinstance(error, CommitRefused):
        return False
    if attempt.error is None:
        return True
    # The body failed, and its connection broke too. Running the body again shows whether the connection was the cause.
    # The body does not run again if it was stopped, or if its result cannot be stored.
    return isinstance(attempt.error, Exception) and not isinstance(attempt.error, GivenUp) and not attempt.is_final


async def _once(store: Store, me: Engine, spot: Spot, body: Body) -> Staged:
    place = StepPlace(
        engine_id=me.id, epoch=me.epoch, run_id=spot.run_id, claim=spot.claim, position=spot.position
    )  # fmt: skip
    return await store.transact(place, body.plain if store.transacts == "plain" else body.awaited)


def encoded(codec: Codec, text: str, refuse: Callable[[BaseException], NoReturn]) -> str:
    """Return the text in the form in which it is stored. This must be called on the loop, because a codec does not need
    to be thread-safe.
    """
    try:
        return codec.encode(text)
    except Exception as error:  # noqa: BLE001 - users' codecs may raise anything
        refuse(error)


def encoded_elsewhere(
    codec: Codec, loop: asyncio.AbstractEventLoop, text: str, refuse: Callable[[BaseException], NoReturn]
) -> str:
    """Return the same as `encoded`. This is called in another thread, and waits for the loop."""
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
    """Replaces the running loop in a thread in which nothing may be awaited."""

    def __init__(self, step: str) -> None:
        self._step = step

    def __getattr__(self, name: str) -> Any:
        raise Misuse(
            f"nothing can be awaited in the transactional step {self._step!r}, because all other writes wait until it "
            "ends: do that in another step"
        )


@contextmanager
def without_loop(step: str) -> Generator[None]:
    """Make asyncio refuse to run anything in this thread."""
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
