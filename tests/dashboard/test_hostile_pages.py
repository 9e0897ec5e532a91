"""Every page, in a browser, with every text that browsers have ever taken for more than text: none of it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import perdure.dashboard
from perdure import Retry, current_step, publish, receive, step, stream, workflow
from perdure.errors import PerdureError
from tests.dashboard.harm import check
from tests.dashboard.site import Eyes, House

BARE = "x onfocus=alert(1) autofocus"  # where an attribute stands without quotes
TEXTS = (
    "<script>alert(1)</script>", '"><script>alert(1)</script>', "'><img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>", "<iframe srcdoc='<script>alert(1)</script>'>", "<a href=javascript:alert(1)>x</a>",
    "javascript:alert(1)", "<details open ontoggle=alert(1)>", "<style>@import'javascript:alert(1)'</style>",
    "<base href=//elsewhere/>", "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "<form><button formaction=javascript:alert(1)>x", "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>", "</script><script>alert(1)</script>",
    "<!--><img src=x onerror=alert(1)>-->", "{{constructor.constructor('alert(1)')()}}", "${alert(1)}",
    "<math><mtext></p><style>", "<script>alert(1)</script>", "data:text/html,<script>alert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;", BARE,
)  # fmt: skip


class HostilePagesFailure(Exception):
    pass


@step(name="hostile-pages-step", retry=Retry.never())
async def fails(text: str) -> None:
    current_step().append(text, {text: text})
    raise HostilePagesFailure(text)


@workflow(name="hostile-pages")
async def shows(text: str) -> None:
    await publish(text, {text: [text]})
    await stream(text).append(text)
    await fails(text)


@workflow(name="hostile-pages-waits")
async def waits(text: str) -> None:
    await receive(text, where={"of": text})


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("house"), workflows=[shows, waits]).open() as house:
        yield house


def pages(text: str) -> Iterator[str]:
    """Where the text is, and where it is asked for."""
    for run_id in (f"{text} fails", f"{text} waits"):
        yield f"/ui/runs/{quote(run_id, safe='')}"
    said = quote(text, safe="")
    yield f"/ui/runs?q={said}"
    yield f"/ui/tasks?queue={said}&after={said}"
    yield f"/ui/events?name={said}&to={said}&of={said}"
    yield f"/ui/definitions?start={said}&version={said}"
    yield f"/ui/artifacts?name={said}&run={said}"
    yield f"/ui/many-runs?do=cancel&id={said}&q={said}"
    yield f"/ui/{said}?said={said}&span={said}"
    yield f"/ui/sign-in?to={said}"


@pytest.mark.parametrize(
    "texts",
    [(*TEXTS[1:3], BARE), pytest.param(TEXTS, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
    ids=["some", "all"],
)
def test_no_text_runs_on_any_page(house: House, eyes: Eyes, texts: tuple[str, ...]) -> None:
    seen = 0
    for text in texts:
        for workflow_of, name in ((shows, "fails"), (waits, "waits")):
            try:
                house.do(house.engine.start(workflow_of(text), id=f"{text} {name}", tags={text: text}))
            except PerdureError as error:
                raise AssertionError(f"{text!r} could not be started: {error}") from error
        house.until_status(f"{text} fails", "failed")
        house.until_status(f"{text} waits", "suspended")
        for path in pages(text):
            eyes.go(path)
            check(eyes)
            seen += 1
    for path in (
        "/ui",
        "/ui/runs",
        "/ui/tasks",
        "/ui/artifacts",
        "/ui/records",
        "/ui/events",
        "/ui/dead-letters",
        "/ui/engines",
        "/ui/definitions",
    ):
        eyes.go(path)
        check(eyes)
        seen += 1
    assert eyes.complaints == []
    print(f"{seen} pages")  # noqa: T201 - for the record


def test_no_template_leaves_a_value_unquoted_or_unescaped() -> None:
    """In an attribute without quotes, escaping does not help: a space ends the value."""
    templates = sorted((Path(perdure.dashboard.__file__).parent / "templates").glob("*.html"))
    assert len(templates) > 10
    for path in templates:
        source = path.read_text("utf-8")
        assert re.findall(r"\s[\w-]+\s*=\s*\{\{.{0,40}", source) == [], path.name
        assert re.findall(r".{0,40}\|\s*safe\b|autoescape\s+false", source) == [], path.name


LINKS = "[...document.querySelectorAll('a')].map(one => one.href)"


def test_the_way_back_from_a_problem_leads_to_a_page_of_ours(house: House, eyes: Eyes) -> None:
    for referer in ("javascript:alert(1)", "https://elsewhere/ui/runs", "//elsewhere/ui", "http://[", BARE):
        eyes.page.set_extra_http_headers({"referer": referer})
        eyes.page.goto(f"{house.url}/ui/runs/nobody")
        check(eyes)
        found = eyes.page.evaluate(LINKS)
        assert found, referer
        assert [link for link in found if not link.startswith(f"{house.url}/")] == [], referer
    eyes.page.set_extra_http_headers({})
