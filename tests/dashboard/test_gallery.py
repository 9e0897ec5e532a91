"""Every page, with something on it: reached by links, kept as pictures, and looked at by axe in both themes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from playwright.sync_api import expect

from perdure import NamedEvent
from perdure.cooperation import Topic
from perdure.dashboard.pages import PAGES
from perdure.errors import ScopeFailed
from tests.dashboard.site import (
    Eyes,
    House,
    Order,
    Paid,
    asks,
    awaits_payment,
    checkout,
    family,
    greet,
    naps,
    orders,
    reports,
)


@pytest.fixture(scope="module")
def busy(house: House) -> House:
    """Runs of all three models: ended well and badly, waiting, asking."""

    async def begin() -> None:
        engine = house.engine
        for number in range(12):
            await engine.run(greet(f"guest {number}"), tags={"tenant": "acme" if number % 2 else "umbrella"})
        for number in range(4):
            await engine.start(checkout(f"o-{number}"), id=f"checkout-{number}")
        await engine.start(awaits_payment("o-9"), id="waits", deadline=timedelta(hours=3))
        await engine.start(naps(86_400), id="gone")
        await engine.start(asks("o-7"), id="asks", tags={"team": "refunds"})
        await engine.run(family("ada"), id="family")
        await engine.run(naps(0.05), id="napped")
        await engine.start(naps(86_400), id="naps")
        await engine.run(reports("summary.txt", "all is well"), id="reported")
        await engine.start("research", {"input": {"topic": "tides"}}, id="graph")
        for text in ("Hello!", "Good morning, and welcome."):
            await engine.records.put("prompt", "greeting", {"text": text}, actor="ann")
        await engine.topics.register("approvals", "the boss")
        await engine.emit(Topic("approvals", dict), {"sku": "grand piano", "price": 90_000})
        root = await engine.emit(orders, Order(sku="lamp", price=40))
        await root.finished()
        root = await engine.emit(orders, Order(sku="piano", price=9_000))
        with pytest.raises(ScopeFailed):
            await root.finished()

    house.do(begin())
    house.until_status("checkout-0", "failed")
    house.until_status("gone", "suspended")
    house.do(house.engine.handle("waits").pause(reason="the bank is closed", actor="ann"))

    house.do(house.engine.send(Paid(amount=100), to="gone"))
    house.do(house.engine.handle("gone").cancel(actor="ann"))
    house.do(house.engine.send(NamedEvent("nobody.waits", {"for": "this"})))
    house.until(lambda: house.engine.tasks.list(run="graph", status="open"))
    return house


@pytest.mark.parametrize("title", [page.title for page in PAGES if page.title])
def test_every_page_is_reached_by_links_and_is_accessible(busy: House, eyes: Eyes, title: str) -> None:
    page = eyes.go("/")
    page.wait_for_selector("[data-live-state=on]")
    if title != "Overview":
        page.click(f"nav[aria-label=Pages] a:text-is('{title}')")
        page.wait_for_selector(f"h1:text-is('{title}')")
    if title == "Records":
        page.fill("#kind", "prompt")
        page.press("#kind", "Enter")
        page.click("td a:text-is('greeting')")
        page.wait_for_selector("#h-record")
    eyes.keep_and_check(title.lower().replace(" ", "-"))


@pytest.mark.parametrize("run_id", ["checkout-0", "waits", "graph", "reported"])
def test_the_page_of_a_run(busy: House, eyes: Eyes, run_id: str) -> None:
    eyes.go(f"/ui/runs/{run_id}")
    eyes.page.wait_for_selector("h1")
    eyes.keep_and_check(f"run-{run_id}")


def test_an_operation_that_was_rolled_back(busy: House, eyes: Eyes) -> None:
    page = eyes.go("/ui/runs?q=workflow:place-order+status:rolled_back")
    page.click("td.id a")
    page.wait_for_selector("#tree")
    eyes.keep_and_check("run-operation")
    assert "rolled back" in eyes.text()
    page.click(".tree > li > .row a")
    expect(page.locator("h1 ~ .dim")).to_have_text("message")
    expect(page.locator("#happened")).to_contain_text("9000 is more than the card allows")
    eyes.keep_and_check("run-emission")


def test_a_run_that_waits_for_a_person(busy: House, eyes: Eyes) -> None:
    page = eyes.go("/ui/topics")
    page.click("td.id a")
    page.wait_for_selector("h1:text-is('the boss')")
    eyes.keep_and_check("run-handler")


def test_the_form_of_a_task(busy: House, eyes: Eyes) -> None:
    page = eyes.go("/ui/tasks")
    page.click("text=Refund o-7?")
    page.wait_for_selector("#h-answer")
    eyes.keep_and_check("task")
