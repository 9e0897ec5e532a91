"""A dashboard as users have it: an engine with all three models, a server, and a browser that looks at its pages."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from perdure import (
    Client,
    Engine,
    Event,
    Limits,
    Retry,
    current_step,
    publish,
    receive,
    sleep,
    stage,
    step,
    stream,
    task,
    workflow,
)
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.dashboard import dashboard
from perdure.engine import AnyClient
from perdure.graph import Graph, all_of, append, human
from perdure.http import serving

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
PATIENCE_S = 30.0
T = TypeVar("T")


class Paid(Event, on_target_terminated="dead_letter"):
    amount: int


class Address(msgspec.Struct):
    street: str
    zip: int | None = None


class Decision(msgspec.Struct):
    ok: bool
    why: str
    grade: str = "good"
    share: float = 0.5
    copies: int = 1
    address: Address | None = None
    labels: list[str] = []


class Luck:
    """What makes `checkout` succeed at last."""

    has_come = False


@step
async def reserve(order: str) -> dict[str, str]:
    return {"reserved": order}


@step(retry=Retry(attempts=2, initial=timedelta(milliseconds=1)))
async def charge(order: str) -> str:
    if not Luck.has_come:
        raise ValueError(f"the card of {order} was declined")
    return f"{order} charged"


@workflow
async def checkout(order: str) -> str:
    await publish("order", order)
    await reserve(order)
    return await charge(order)


@workflow
async def greet(name: str) -> str:
    return f"hello {name}"


@workflow
async def awaits_payment(order: str) -> int:
    await publish("state", {"order": order, "paid": False})
    log = stream("log")
    await log.append(f"{order} waits")
    paid = await receive(Paid)
    await log.append({"paid": paid.amount})
    return paid.amount


@workflow
async def naps(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


@workflow
async def family(name: str) -> str:
    return await greet(name)


@workflow
async def asks(order: str) -> str:
    got = await task(queue="refunds", title=f"Refund {order}?", payload={"order": order}, schema=Decision)
    return f"{order}: {got.ok}, {got.why}"


@step
async def render(name: str, text: str) -> None:
    current_step().stage(name, text)


@workflow
async def reports(name: str, text: str) -> str:
    await render(name, text)
    await stage("numbers", [1, 2, 3])
    return name


@step
async def plan(topic: str) -> dict[str, list[str]]:
    return {"queries": [f"{topic} {number}" for number in range(3)]}


@step
async def find(query: str) -> str:
    return f"a note on {query}"


research = Graph("research")
research.node("plan", plan)
research.node("search", find, input={"query": "branch.item"})
research.node("review", human("reviews", title="Publish the report on {{ input.topic }}?", schema=Decision))
research.edge("plan", "search", foreach="nodes.plan.queries")
research.edge("search", "review", join=all_of(), merge=append("state.notes"))


class Order(msgspec.Struct):
    sku: str
    price: int


class Take(msgspec.Struct):
    sku: str


class Bill(msgspec.Struct):
    amount: int


orders, stock, payments = Topic("orders", Order), Topic("stock", Take), Topic("payments", Bill)
place = Operation("place-order", orders)
take = Operation("take-from-stock", stock)
bill = Operation("bill", payments)


@place.step
async def ask_for_all(scope: Scope, order: Order) -> None:
    await scope.emit(stock, Take(sku=order.sku))
    await scope.emit(payments, Bill(amount=order.price))


@ask_for_all.rollback
async def apologise(scope: Scope, order: Order, cause: Failure) -> None: ...


@take.step
async def hold_back(scope: Scope, wanted: Take) -> None: ...


@hold_back.rollback
async def put_back(scope: Scope, wanted: Take, cause: Failure) -> None: ...


@bill.step
async def authorise(scope: Scope, wanted: Bill) -> None:
    if wanted.amount > 1_000:
        raise ValueError(f"{wanted.amount} is more than the card allows")


WORKFLOWS: list[Any] = [
    checkout, greet, awaits_payment, naps, family, asks, reports, research, place, take, bill
]  # fmt: skip


class House:
    """The engine, and a server that has a client of its own, on a thread of theirs."""

    def __init__(self, folder: Path, workflows: Sequence[Any] = (), **options: Any) -> None:
        self.store = f"sqlite:///{folder / 'site.db'}"
        self.url = ""
        self.engine: Engine
        self.client: AnyClient
        self._workflows = list(workflows or WORKFLOWS)
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stack: Any = None

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done where the engine is."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def until(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What is asked for, as soon as there is some."""
        give_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at:
            if found := self.do(ask()):
                return found
            time.sleep(0.01)
        raise AssertionError("it did not come")

    def until_status(self, run_id: str, *statuses: str) -> None:
        async def has_it() -> bool:
            run = await self.engine.runs.get(run_id)
            return run is not None and run.status in statuses

        self.until(has_it)

    @contextmanager
    def open(self) -> Iterator[House]:
        self._thread.start()
        served = self._served()
        try:
            self.do(served.__aenter__())
            yield self
            self.do(served.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()

    @asynccontextmanager
    async def _served(self) -> AsyncGenerator[None]:
        options: dict[str, Any] = {
            "poll_s": 0.05,
            "requests_burst": 100_000,
            "pages": dashboard(graphs=[research]),
            **self._options,
        }
        async with (
            Engine(self.store, workflows=self._workflows, poll_s=0.05, limits=Limits(grace_s=0)) as self.engine,
            Client(self.store, poll_s=0.05) as self.client,
            serving(self.client, port=0, **options) as self.url,
        ):
            yield


class Eyes:
    """A browser's page, which must never complain, and what is asked of every page that it sees."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_S * 1_000)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"a dialog said {dialog.message}"))

    def _heard(self, message: ConsoleMessage) -> None:
        # A browser also notes there what a server refused, which is not the page's fault.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def go(self, path: str) -> Page:
        self.page.goto(f"{self.url}{path}")
        return self.page

    def text(self) -> str:
        return self.page.inner_text("main")

    def keep_and_check(self, name: str) -> None:
        """Keep pictures of the page in both themes and on a phone, and have axe look at it in both."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page = self.page
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png", full_page=True)
            # Only the colours are others in the dark.
            rules = {} if theme == "light" else {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
            found = Axe().run(page, options=rules).response["violations"]
            serious = [
                f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
                for one in found
                if one["impact"] in ("serious", "critical")
                for node in one["nodes"]
            ]
            assert not serious, f"{name}, {theme}:\n" + "\n".join(serious)
        page.emulate_media(color_scheme="light")
        size = page.viewport_size
        page.set_viewport_size({"width": 375, "height": 740})
        page.screenshot(path=SCREENSHOTS / f"{name}-375.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, f"{name} is too wide for a phone"
        assert size is not None
        page.set_viewport_size(size)


def found_browser() -> str | None:
    """The machine's own Chromium; None: playwright's."""
    named = os.environ.get("PERDURE_CHROMIUM")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return named or next((path for path in map(shutil.which, names) if path), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    quiet = [
        "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    ]  # fmt: skip
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found_browser(), args=quiet)
        try:
            yield browser
        finally:
            browser.close()
