"""Whatever names and values say, they are text: in every field, on every page, also when it comes later."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from perdure import Event, NamedEvent, Retry, current_step, publish, receive, sleep, stage, step, stream, task, workflow
from perdure.cooperation import Operation, Scope, Topic
from perdure.graph import Graph
from tests.dashboard.harm import check
from tests.dashboard.site import Eyes, House

EVIL = "\"'><img src=x onerror=alert(1)><script>alert(2)</script>&lt;{{7*7}}"
LINK = "javascript:alert(3)"
SCHEMA = {
    "type": "object",
    "title": EVIL,
    "required": [EVIL],
    "properties": {
        EVIL: {"type": "string", "title": EVIL, "description": EVIL, "default": EVIL},
        LINK: {"enum": [EVIL, LINK], "description": EVIL},
        "list": {"type": "array", "items": {"type": "string"}, "default": [EVIL]},
    },
}


class Evil(Event, event_name=EVIL, on_target_terminated="dead_letter"):
    value: str


class Bad(Exception):
    pass


@step(name=EVIL, retry=Retry.never())
async def fails(text: str) -> None:
    current_step().stage(EVIL, EVIL, media_type="text/html")
    raise Bad(text)


@workflow(name=EVIL, version=EVIL)
async def evil(text: str) -> None:
    await publish(EVIL, EVIL)
    await stream(EVIL).append(EVIL)
    await stream(LINK).append({EVIL: EVIL})
    await fails(text)


@workflow(name=LINK)
async def waits() -> None:
    await stage(EVIL, f"<script>{EVIL}</script>", media_type="text/html")
    await receive(Evil, where={"value": EVIL})


@workflow(name="evil-asks")
async def asks() -> None:
    await task(queue=EVIL, title=EVIL, payload={EVIL: EVIL}, schema=SCHEMA)


@workflow(name="evil-sleeps")
async def sleeps() -> None:
    await sleep(86_400)


@step
async def nothing() -> str:
    return EVIL


drawn = Graph("evil-graph", description=EVIL)
drawn.node("node", nothing)

evil_topic = Topic(EVIL, str)
handler = Operation(f"{EVIL} handler", evil_topic)


@handler.step
async def handle(scope: Scope, message: str) -> None:
    raise Bad(message)


PAGES = (
    "/ui",
    "/ui/runs",
    "/ui/tasks",
    "/ui/artifacts",
    "/ui/records",
    "/ui/events",
    "/ui/dead-letters",
    "/ui/engines",
    "/ui/definitions",
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    workflows = [evil, waits, asks, sleeps, drawn, handler]
    with House(tmp_path_factory.mktemp("house"), workflows=workflows).open() as house:

        async def begin() -> None:
            engine = house.engine
            tags = {EVIL: EVIL, LINK: LINK}
            await engine.start(evil(EVIL), id=EVIL, tags=tags)
            await engine.start(waits(), id=LINK, tags=tags)
            await engine.start(asks(), id="asks")
            await engine.start(sleeps(), id="sleeps")
            await engine.start(sleeps(), id=f"{EVIL} gone")
            await engine.send(Evil(value=EVIL), to=f"{EVIL} gone")
            await engine.handle(f"{EVIL} gone").cancel(reason=EVIL, actor=EVIL)
            await engine.send(NamedEvent(LINK, {EVIL: EVIL}))
            await engine.run(drawn(), id="drawn")
            await engine.emit(evil_topic, EVIL, id=f"{EVIL} root")

        house.do(begin())
        house.until_status(EVIL, "failed")
        house.until_status(LINK, "suspended")
        house.do(house.engine.handle("sleeps").pause(reason=EVIL, actor=EVIL))
        house.until(lambda: house.engine.tasks.list(status="open"))
        yield house


def test_every_page_shows_it_as_text(house: House, eyes: Eyes) -> None:
    page = eyes.page
    for path in PAGES:
        eyes.go(path)
        check(eyes)
    runs = page.goto(f"{house.url}/ui/runs")
    assert runs is not None
    links = page.eval_on_selector_all("td.id a", "all => all.map(one => one.href)")
    assert len(links) == 7
    for link in links:
        page.goto(link)
        assert page.locator("h1").count() == 1
        check(eyes)
    eyes.go(f"/ui/runs/{quote(EVIL, safe='')}")
    expect(page.locator("#error .error-text").first).to_have_text(EVIL)
    expect(page.locator("h1")).to_have_text(EVIL)


def test_what_is_asked_for_is_told_as_text(house: House, eyes: Eyes) -> None:
    for path in (
        f"/ui/runs?q={quote(EVIL)}",
        f"/ui/runs?q={quote('status:' + EVIL)}",
        f"/ui/runs/{quote('nobody ' + EVIL, safe='')}",
        f"/ui/{quote(EVIL, safe='')}",
        f"/ui/tasks?queue={quote(EVIL)}&after={quote(EVIL)}",
        f"/ui/events?name={quote(EVIL)}&to={quote(LINK)}&of={quote(EVIL)}",
        f"/ui/definitions?start={quote(EVIL)}&version={quote(EVIL)}",
        f"/ui/artifacts?name={quote(EVIL)}&run={quote(EVIL)}",
        f"/ui/many-runs?do=cancel&id={quote(LINK)}&q={quote(EVIL)}",
        f"/ui/many-runs?do={quote(EVIL)}",
        f"/ui/records?kind={quote(EVIL)}&name={quote(LINK)}&version={quote(EVIL)}",
        f"/ui/dead-letters?name={quote(EVIL)}",
        f"/ui/many-runs?do=cancel&done=1&count=1&refused={quote(EVIL)}&q={quote(LINK)}",
        f"/ui?said={quote(EVIL)}&span={quote(EVIL)}",
    ):
        eyes.go(path)
        check(eyes)


def test_a_form_from_a_schema_that_means_harm(house: House, eyes: Eyes) -> None:
    page = eyes.go("/ui/tasks")
    page.click("td a")
    check(eyes)
    page.select_option("select", index=1)
    page.click("button:text-is('Answer')")
    expect(page.locator(".said")).to_have_text("Your answer is stored.")
    check(eyes)
    house.until_status("asks", "succeeded")


def test_what_comes_while_a_page_is_open_is_text_too(house: House, browser: Browser, eyes: Eyes) -> None:
    page = eyes.go("/ui/runs")
    page.wait_for_selector("[data-live-state=on]")
    house.do(house.engine.start(evil(EVIL), id=f"later {EVIL}", tags={EVIL: EVIL}))
    expect(page.locator("tr:has-text('later') .status").first).to_have_text("✗failed")
    check(eyes)


def test_an_artifact_never_acts_as_a_page(house: House, eyes: Eyes) -> None:
    page = eyes.go("/ui/artifacts")
    with page.expect_download() as download:
        page.locator("text=Download").first.click()
    assert "<script>" in download.value.path().read_text()
    answer = page.request.get(download.value.url)
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in answer.headers["content-security-policy"]
