"""Limits of retries: how long a request to a silent store is repeated, and how often an engine restarts if its store
cannot be used.

One rule holds for all calls of engines and clients. A request is repeated until the store answers, but for at most
`patience_s`. This time includes the store's own waits for locks and connections, and the time that earlier requests of
the same call have waited. After that time, the caller gets StoreUnavailable. The engine's own writes are resent until
the store accepts them (store_retries.py).
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from perdure.coordinator.call_spans import Silences, call_began
from perdure.coordinator.notices import Outage
from perdure.errors import StoreBusy, StoreError, StoreMisconfigured, StoreUnavailable
from perdure.ports import Store
from perdure.values.limits import Limits

T = TypeVar("T")

# Errors that pass by themselves, or when somebody repairs the store. If the same request is repeated, it may succeed.
PASSING: Final = (StoreBusy, StoreMisconfigured)

ADVICE: Final = "see that the database is up and can be reached (perdure doctor), then ask again"


class Patience:
    """Sends requests to the store on behalf of callers. If the engine has stopped in the meantime, `check` raises the
    reason.
    """

    def __init__(
        self,
        limits: Limits,
        counts: Counter[str] | None = None,
        check: Callable[[], object] = lambda: None,
        silences: Silences | None = None,
    ) -> None:
        self._limits = limits
        self._silences = silences or Silences()
        self._check = check
        self._outage = Outage("read", Counter[str]() if counts is None else counts)

    async def ask(self, request: Callable[[], Awaitable[T]], *, may_be_cut: bool = True) -> T:
        """Repeat a request until the store answers it. Raises StoreUnavailable after `patience_s`, and EngineStopped.
        Store errors that do not pass are raised at once. If `may_be_cut` is False, a request that is under way is
        awaited to its end.
        """
        limits = self._limits
        delay = limits.resend_first_s
        failure: StoreError | None = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        give_up_at = began + limits.patience_s
        if (call := call_began.get()) is not None:
            give_up_at -= self._silences.between(call, began)
        patience = asyncio.timeout_at(give_up_at)
        try:
            async with patience:
                while True:
                    try:
                        if not may_be_cut:
                            patience.reschedule(None)
                        answer = await request()
                    except PASSING as error:
                        patience.reschedule(give_up_at)
                        self._check()
                        failure = error
                        self._outage.failed("a request to the store is repeated", error)
                    except StoreError:
                        self._check()  # If the engine has stopped, the store failed for that reason.
                        raise
                    else:
                        if failure is not None:
                            self._silences.note(began, loop.time())
                        self._outage.worked()
                        return answer
                    await asyncio.sleep(delay)
                    self._check()
                    delay = min(delay * 2, limits.resend_max_s)
        except TimeoutError:
            if not patience.expired():
                raise
        raise unavailable(limits.patience_s, failure) from failure


def unavailable(waited_s: float, failure: StoreError | None, *, is_unknown: bool = False) -> StoreUnavailable:
    """Return the error for a caller who has waited `waited_s` seconds. `is_unknown` says that the request may have been
    carried out.
    """
    why = f": {failure}" if failure is not None else ""
    written = "; what was asked for may be written nevertheless" if is_unknown else ""
    return StoreUnavailable(f"the store did not answer for {waited_s:.0f} s{why}{written}. What to do: {ADVICE}")


class _WrappedStore:
    """A store whose async requests go through `ask`."""

    def __init__(self, store: Store, ask: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
        self._store = store
        self._ask = ask

    def __getattr__(self, name: str) -> Any:
        request = getattr(self._store, name)
        if name == "transact" or not inspect.iscoroutinefunction(request):
            return request
        ask = self._ask

        async def asked(*args: Any, **options: Any) -> Any:
            return await ask(lambda: request(*args, **options))

        self.__dict__[name] = asked
        return asked


def patient(store: Store, patience: Patience) -> Store:
    """Return the store for callers. Each request is repeated while the store does not answer. Where the store itself
    raises StoreBusy or StoreMisconfigured, it raises StoreUnavailable.

    The store may still carry out a request that was given up. So use it only for requests that may be made twice.
    """
    return cast(Store, _WrappedStore(store, patience.ask))


def reporting(store: Store, report: Callable[[StoreMisconfigured], object]) -> Store:
    """Return the store for an engine's own parts. If the store cannot be used, `report` is called with the error. An
    engine that cannot read its runs must not keep them. The engine's parts repeat their requests. Without the report,
    they would repeat them forever.
    """

    async def ask(request: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await request()
        except StoreMisconfigured as error:
            report(error)
            raise

    return cast(Store, _WrappedStore(store, ask))


class Restarts:
    """Counts the restarts of an engine in a row, and returns the pause before the next restart."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._count = 0
        self._last = 0.0

    def next_pause_s(self, now: float) -> float | None:
        """Return the seconds before the engine registers again. Return None after `restarts_max` restarts in a row.
        `now` is the loop's time.
        """
        limits = self._limits
        if self._count and now - self._last > limits.restart_forget_s:
            self._count = 0
        if self._count >= limits.restarts_max:
            return None
        pause_s = min(limits.restart_first_s * 2.0**self._count, limits.restart_max_s)
        self._count += 1
        self._last = now + pause_s
        return pause_s

    @property
    def count(self) -> int:
        return self._count


__all__ = ["ADVICE", "PASSING", "Patience", "Restarts", "call_began", "patient", "reporting", "unavailable"]
