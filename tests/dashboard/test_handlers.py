"""Handlers that are people say in a browser what they did, and messages are emitted there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from playwright.sync_api import expect

from perdure.cooperation import Failure, Operation, Scope, Topic
from tests.dashboard.site import Eyes, House

FORM = {"sec-fetch-site": "same-origin"}
BOSS = "the boss"


class Wish(msgspec.Struct):
    price: int


wishes, approvals = Topic("wishes", Wish), Topic("approvals", Wish)
buy = Operation("buy", wishes)
heard: list[Any] = []


@buy.step
async def ask(scope: Scope, wish: Wish) -> None:
    await scope.emit(approvals, wish)


@ask.rollback
async def forget(scope: Scope, wish: Wish, cause: Failure) -> None:
    heard.append("forgotten")


@buy.step
async def pay(scope: Scope, wish: Wish) -> None:
    heard.append(scope.returned("limit", int))
    if wish.price > 1_000:
        raise ValueError("there is not so much money")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("house"), [buy]).open() as house:
        house.do(house.engine.topics.register(approvals, BOSS))
        yield house


@pytest.fixture(autouse=True)
def nothing_heard() -> None:
    heard.clear()


def asked(house: House, price: int = 1) -> tuple[str, str]:
    """A wish that waits for the boss: the run of whoever asks, and that of the boss."""

    async def find() -> tuple[str, str] | None:
        found = await house.engine.handle(root.id).tree()
        below = [(one.run.id, child.run.id) for one in found.children for child in one.children]
        return below[0] if below else None

    root = house.do(house.engine.emit(wishes, Wish(price=price)))
    found = house.until(find)
    assert found is not None
    return found


def changes(house: House, run_id: str) -> list[str]:
    """What the dashboard's user did to a run."""
    return [row.became for row in house.do(house.engine.handle(run_id).audit()) if row.actor == "dashboard"]


def test_a_person_says_that_it_is_done_and_what_it_gives(house: House, eyes: Eyes) -> None:
    buying, boss = asked(house)
    page = eyes.go("/ui")
    page.click("nav[aria-label=Pages] a:text-is('Topics')")
    page.click(f"a[title='{boss}']")
    expect(page.locator("#h-why + p")).to_contain_text("somebody outside does it and says so here")
    expect(page.locator("[aria-label='What is asked']")).to_contain_text('"price": 1')
    page.click("text=It is done…")
    page.fill("#complete-values", "[1]")
    page.click("dialog[open] >> button:text-is('It is done')")
    expect(page.locator("[role=alert]")).to_have_text(
        "The result must be an object with values by name, or empty."
    )  # fmt: skip
    assert house.do(house.engine.handle(boss).status()) == "created"
    page.click("text=It is done…")
    expect(page.locator("#complete-values")).to_have_value("[1]")
    page.fill("#complete-values", '{"limit": 17}')
    page.click("dialog[open] >> button:text-is('It is done')")
    expect(page.locator(".said")).to_have_text("The run is completed.")
    expect(page.locator("h1 + .status")).to_have_text("✓succeeded")
    expect(page.locator("[data-opens=complete]")).to_have_count(0)
    house.until_status(buying, "succeeded")
    assert heard == [[17]]
    assert changes(house, boss) == ["running", "succeeded"]


def test_a_person_says_that_it_cannot_be_done(house: House, eyes: Eyes) -> None:
    buying, boss = asked(house)
    page = eyes.go(f"/ui/runs/{boss}")
    page.click("text=It cannot be done…")
    page.click("dialog[open] >> text=Leave it alone")
    page.click("text=It cannot be done…")
    page.fill("#fail-reason", "too dear")
    page.click("dialog[open] >> button:text-is('It cannot be done')")
    expect(page.locator("h1 + .status")).to_have_text("↩rolled back")
    house.until_status(buying, "rolled_back")
    assert heard == ["forgotten"]
    assert changes(house, boss) == ["running", "rolling_back", "rolled_back"]


def test_a_person_undoes_what_they_did_and_says_so(house: House, eyes: Eyes) -> None:
    buying, boss = asked(house, 2_000)
    house.do(house.engine.topics.complete(boss))
    house.until_status(boss, "rolling_back")
    page = eyes.go(f"/ui/runs/{boss}")
    expect(page.locator("#h-why + p")).to_contain_text("somebody outside undoes it and says so here")
    page.click("text=It is undone…")
    page.click("dialog[open] >> button:text-is('It is undone')")
    expect(page.locator("h1 + .status")).to_have_text("↩rolled back")
    house.until_status(buying, "rolled_back")
    assert heard == [[], "forgotten"]
    assert changes(house, boss) == ["rolled_back"]


def test_a_form_that_comes_again_or_too_late_changes_nothing(house: House) -> None:
    buying, boss = asked(house)
    with httpx.Client(base_url=house.url, headers=FORM, trust_env=False, timeout=60) as browser:
        assert browser.post(f"/ui/runs/{boss}/fail", data={"reason": " "}).status_code == 422
        statuses = [
            browser.post(f"/ui/runs/{boss}/complete", data={"values": '{"limit": 1}'}).status_code for _ in range(2)
        ]
        assert statuses == [303, 409]
        assert browser.post(f"/ui/runs/{boss}/fail", data={"reason": "no"}).status_code == 409
        assert browser.post(f"/ui/runs/{boss}/undone", data={"x": ""}).status_code == 422
        assert browser.post("/ui/runs/nobody/complete", data={"values": ""}).status_code == 404
        house.until_status(buying, "succeeded")
        assert browser.post(f"/ui/runs/{buying}/complete", data={"values": ""}).status_code == 409
    assert heard == [[1]]
    assert changes(house, boss) == ["running", "succeeded"]


def test_a_message_is_emitted(house: House, eyes: Eyes) -> None:
    page = eyes.go("/ui/topics")
    expect(page.locator("tr:has-text('the boss') td:last-child").last).to_have_text("no engine")
    page.select_option("#topic", "wishes")
    page.fill("#message", "{")
    page.click("button:text-is('Emit')")
    expect(page.locator("[role=alert]")).to_contain_text("The message is not JSON")
    expect(page.locator("#topic")).to_have_value("wishes")
    page.fill("#message", '{"price": 3}')
    page.click("button:text-is('Emit')")
    expect(page.locator(".said")).to_have_text("The message was emitted.")
    expect(page.locator("h1")).to_have_text("wishes")
    page.click("#tree li li a")
    expect(page.locator("h1")).to_have_text("buy")
    run_id = page.inner_text(".run-facts .id")
    assert changes(house, run_id) == ["created"]


def test_the_same_form_emits_once(house: House) -> None:
    with httpx.Client(base_url=house.url, headers=FORM, trust_env=False, timeout=60) as browser:

        def sent(message: str, topic: str = "wishes") -> httpx.Response:
            return browser.post("/ui/topics", data={"topic": topic, "message": message, "nonce": "n"})

        first, again, other = sent('{"price": 1}'), sent('{"price": 1}'), sent('{"price": 2}')
        assert first.status_code == again.status_code == other.status_code == 303
        assert first.headers["location"] == again.headers["location"] != other.headers["location"]
        assert sent("1", "nobody's").status_code == 422
