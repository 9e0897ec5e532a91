"""What people do with the dashboard, in a browser: every action, what it says before, and what the audit says after."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from perdure.cooperation import Topic
from tests.dashboard.site import (
    Eyes,
    House,
    Luck,
    Order,
    Paid,
    asks,
    awaits_payment,
    checkout,
    greet,
    naps,
    orders,
)


def actors(house: House, run_id: str) -> list[tuple[str, str]]:
    """Who changed a run, and to what, the latest first."""
    return [(row.became, row.actor) for row in reversed(house.do(house.engine.handle(run_id).audit()))]


@pytest.fixture(autouse=True)
def no_luck() -> None:
    Luck.has_come = False


def test_from_the_overview_to_a_failed_runs_step_and_stack_in_three_clicks(house: House, eyes: Eyes) -> None:
    house.do(house.engine.start(checkout("o-1"), id="three"))
    house.until_status("three", "failed")
    page = eyes.go("/ui")
    clicks = 0
    page.click("a:has-text('failed'):has(b)")
    clicks += 1
    page.click("td.id a:text-is('three')")
    clicks += 1
    error = page.locator("#error")
    expect(error.locator("h2")).to_have_text("Failed in step charge after 2 attempts")
    expect(error.locator(".error").first).to_have_text("ValueError the card of o-1 was declined")
    assert "in charge" in error.inner_text()
    assert "raise ValueError" in error.inner_text()
    assert clicks <= 3


def test_a_failed_run_is_retried_from_its_page(house: House, eyes: Eyes) -> None:
    house.do(house.engine.start(checkout("o-2"), id="again"))
    house.until_status("again", "failed")
    page = eyes.go("/ui/runs/again")
    page.click("text=Retry…")
    expect(page.locator("dialog[open]")).to_contain_text("continues from the step whose failure ended it")
    Luck.has_come = True
    page.click("dialog[open] >> text=Retry the run")
    expect(page.locator(".said")).to_have_text("The run is retried.")
    expect(page.locator("h1 + .status")).to_have_text("✓succeeded")  # by itself, without a reload
    assert ("running", "dashboard") in actors(house, "again")


def test_a_run_is_paused_resumed_and_cancelled(house: House, eyes: Eyes) -> None:
    house.do(house.engine.start(naps(3_600), id="steered"))
    house.until_status("steered", "suspended")
    page = eyes.go("/ui/runs/steered")
    expect(page.locator("#h-why + p")).to_contain_text("Waits for a timer, due in")
    page.click("text=Pause…")
    page.fill("dialog[open] >> input[name=reason]", "the bank is closed")
    page.click("dialog[open] >> text=Pause the run")
    expect(page.locator("#h-why + p")).to_contain_text("It is paused: the bank is closed")
    page.click("text=Resume…")
    page.click("dialog[open] >> text=Resume the run")
    expect(page.locator(".said")).to_have_text("The run continues.")
    page.click("text=Cancel…")
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.click("text=Cancel…")
    page.fill("dialog[open] >> input[name=reason]", "not needed")
    page.click("dialog[open] >> text=Cancel the run")
    expect(page.locator("h1 + .status")).to_have_text("–cancelled")
    assert [actor for _, actor in actors(house, "steered")][:3] == ["dashboard"] * 3


def test_what_changed_meanwhile_is_not_changed_by_a_page_that_shows_it_as_it_was(house: House, eyes: Eyes) -> None:
    house.do(house.engine.start(naps(3_600), id="stale"))
    house.until_status("stale", "suspended")
    page = eyes.go("/ui/runs/stale")
    page.click("text=Cancel…")
    # As of a page that was left open while the connection was away.
    page.evaluate("document.querySelector('#cancel [name=version]').name = 'gone'")
    older = "<input name=version value=1>"
    page.evaluate(f"document.querySelector('#cancel form').insertAdjacentHTML('beforeend', '{older}')")
    page.click("dialog[open] >> text=Cancel the run")
    expect(page.locator("h1")).to_have_text("Concurrent modification")
    page.click("text=Back")
    expect(page.locator("h1 + .status")).to_have_text("◐suspended")


def test_many_runs_are_cancelled_after_the_page_said_what_will_happen(house: House, eyes: Eyes) -> None:
    for number in range(3):
        house.do(house.engine.start(naps(3_600), id=f"many-{number}", tags={"batch": "b"}))
        house.until_status(f"many-{number}", "suspended")
    house.do(house.engine.run(greet("x"), id="many-done", tags={"batch": "b"}))
    page = eyes.go("/ui/runs?q=tag:batch=b")
    expect(page.locator("text=Cancel…")).to_be_disabled()
    for name in ("many-0", "many-1", "many-done"):
        page.check(f"[aria-label='Select {name}']")
    expect(page.locator("[data-selected]")).to_have_text("3 selected")
    page.click("text=Cancel…")
    told = page.locator(".notice")
    expect(told).to_contain_text("2 runs will be cancelled")
    expect(told).to_contain_text("1 run has ended already, and stays as it is")
    page.click("text=Cancel 2 runs")
    expect(page.locator(".notice")).to_contain_text("2 runs changed.")
    assert actors(house, "many-0")[0] == ("cancelled", "dashboard")
    house.until_status("many-2", "suspended")
    page.click("text=Back to the list")
    page.check("[name=all]")
    page.click("text=Cancel…")
    expect(page.locator(".notice")).to_contain_text("1 run will be cancelled")
    page.click("text=Leave them alone")
    page.fill("#q", "many-2")
    page.press("#q", "Enter")
    expect(page.locator("td.id")).to_have_text(["many-2"])
    page.check("[name=all]")
    page.click("text=Cancel…")
    expect(page.locator(".notice")).to_contain_text("1 run will be cancelled")
    house.until_status("many-2", "suspended")


def test_many_runs_are_paused_and_resumed(house: House, eyes: Eyes) -> None:
    for number in range(2):
        house.do(house.engine.start(naps(3_600), id=f"held-{number}", tags={"batch": "h"}))
        house.until_status(f"held-{number}", "suspended")
    page = eyes.go("/ui/runs?q=tag:batch=h")
    page.check("[name=all]")
    page.click("text=Pause…")
    expect(page.locator(".notice")).to_contain_text("2 runs will be held until they are resumed")
    page.click("text=Pause 2 runs")
    expect(page.locator(".notice")).to_contain_text("2 runs changed.")
    assert actors(house, "held-0")[0] == ("paused", "dashboard")
    page.click("text=Back to the list")
    page.check("[name=all]")
    page.click("text=Pause…")
    expect(page.locator(".notice")).to_contain_text("2 runs have ended, are held already, or are operations")
    page.click("text=Back to the list")
    page.check("[name=all]")
    page.click("text=Resume…")
    page.click("text=Resume 2 runs")
    expect(page.locator(".notice")).to_contain_text("2 runs changed.")
    assert actors(house, "held-1")[0] == ("resumed", "dashboard")


def test_records_are_listed_and_shown_by_version(house: House, eyes: Eyes) -> None:
    for text in ("hello", "hi"):
        house.do(house.engine.records.put("prompt", "greeting", {"text": text}, actor="ann"))
    page = eyes.go("/ui/records")
    page.fill("#kind", "prompt")
    page.press("#kind", "Enter")
    expect(page.locator("tr:has-text('greeting')")).to_contain_text("ann")
    page.click("td a:text-is('greeting')")
    expect(page.locator("#h-record")).to_have_text("greeting")
    expect(page.locator("main")).to_contain_text('"hi"')
    page.click("text=Version 1")
    expect(page.locator("main")).to_contain_text('"hello"')


def test_many_failed_runs_are_retried(house: House, eyes: Eyes) -> None:
    for number in range(2):
        house.do(house.engine.start(checkout(f"o-{number}"), id=f"retry-{number}", tags={"batch": "r"}))
        house.until_status(f"retry-{number}", "failed")
    page = eyes.go("/ui/runs?q=tag:batch=r")
    page.check("[name=all]")
    page.click("text=Retry…")
    Luck.has_come = True
    page.click("text=Retry 2 runs")
    expect(page.locator(".notice")).to_contain_text("2 runs changed.")
    house.until_status("retry-0", "succeeded")
    house.until_status("retry-1", "succeeded")


def test_runs_are_found_by_filters_and_views_are_kept(house: House, eyes: Eyes) -> None:
    house.do(house.engine.run(greet("y"), id="found-me", tags={"who": "me"}))
    page = eyes.go("/ui/runs")
    page.keyboard.press("/")
    page.keyboard.type("tag:who=me status:ended workflow:greet since:1h")
    page.keyboard.press("Enter")
    expect(page.locator("td.id")).to_have_text(["found-me"])
    page.evaluate("window.prompt = () => 'Mine <b>'")
    page.click("text=Save as view")
    expect(page.locator(".mine a")).to_have_text("Mine <b>")
    page.fill("#q", "found-me")
    page.press("#q", "Enter")
    expect(page.locator("td.id")).to_have_text(["found-me"])
    page.click(".mine a")
    expect(page.locator("#q")).to_have_value("tag:who=me status:ended workflow:greet since:1h")
    page.click("[aria-label='Remove the view Mine <b>']")
    expect(page.locator(".mine")).to_have_count(0)
    page.fill("#q", "sttus:failed")
    page.press("#q", "Enter")
    expect(page.locator("#unclear")).to_contain_text("there is no filter 'sttus'")


def test_pages_of_runs_follow_each_other(house: House, eyes: Eyes) -> None:
    async def begin() -> None:
        for number in range(60):
            await house.engine.run(greet(f"{number}"), tags={"batch": "pages"})

    house.do(begin())
    page = eyes.go("/ui/runs?q=tag:batch=pages")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.click("text=Older")
    expect(page.locator("tbody tr")).to_have_count(10)
    page.click("text=Newest")
    expect(page.locator("tbody tr")).to_have_count(50)


def test_a_task_is_answered_with_a_form_made_from_its_schema(house: House, eyes: Eyes) -> None:
    house.do(house.engine.start(asks("o-3"), id="asking"))
    house.until(lambda: house.engine.tasks.list(run="asking", status="open"))
    page = eyes.go("/ui/runs/asking")
    expect(page.locator("#h-why + p")).to_contain_text("Waits for the answer to a task")
    page.click("text=Refund o-3?")
    page.check("text=Yes")
    page.fill("text=Why", "because")
    page.get_by_label("Labels").fill("[1]")
    page.click("button:text-is('Answer')")
    expect(page.locator("[role=alert]")).to_contain_text("$.labels[0]")
    expect(page.get_by_label("Why")).to_have_value("because")
    page.get_by_label("Labels").fill('["a"]')
    page.click("button:text-is('Answer')")
    expect(page.locator(".said")).to_have_text("Your answer is stored.")
    house.until_status("asking", "succeeded")
    run = house.do(house.engine.runs.get("asking"))
    assert run is not None
    assert run.output == "o-3: True, because"
    [task] = house.do(house.engine.tasks.list(run="asking"))
    assert task.answered_by == "dashboard"


def test_a_task_that_asks_nothing_but_its_title_shows_no_null(house: House, eyes: Eyes) -> None:
    house.do(house.engine.start("research", {"input": {"topic": "tides"}}, id="asking-bare"))
    house.until(lambda: house.engine.tasks.list(run="asking-bare", status="open"))
    page = eyes.go("/ui/tasks")
    page.click("text=Publish the report on tides?")
    asked = page.locator("section[aria-labelledby=h-asked]")
    expect(asked).to_contain_text("The task has no payload.")
    expect(asked).not_to_contain_text("null")


def test_an_event_is_sent_to_a_run_from_where_it_waits(house: House, eyes: Eyes) -> None:
    house.do(house.engine.start(awaits_payment("o-4"), id="paying"))
    house.until_status("paying", "suspended")
    page = eyes.go("/ui/runs/paying")
    expect(page.locator("#shown")).to_contain_text("o-4 waits")
    page.click("text=send it")
    page.fill("#value", "{oops")
    page.click("button:text-is('Send')")
    expect(page.locator("[role=alert]")).to_contain_text("not JSON")
    expect(page.locator("#to")).to_have_value("paying")
    page.fill("#value", '{"amount": 7}')
    page.click("button:text-is('Send')")
    expect(page.locator(".said")).to_have_text("The event was delivered.")
    expect(page.locator("h1 + .status")).to_have_text("✓succeeded")
    expect(page.locator("#shown")).to_contain_text('{"paid":7}')
    page.goto(f"{house.url}/ui/events")
    page.fill("#name", "for.anybody")
    page.click("button:text-is('Send')")
    expect(page.locator(".said")).to_contain_text("No run waits for the event yet")
    expect(page.locator("td:text-is('for.anybody')")).to_be_visible()


def test_dead_letters_are_sent_again_and_removed(house: House, eyes: Eyes) -> None:
    async def begin() -> None:
        for name in ("late-1", "late-2"):
            await house.engine.start(naps(3_600), id=name)
            await house.engine.send(Paid(amount=5), to=name)
            await house.engine.handle(name).cancel()
        await house.engine.start(awaits_payment("o-5"), id="heir")

    house.do(begin())
    page = eyes.go("/ui/dead-letters")
    row = page.locator("tr:has-text('late-1')")
    row.locator("text=Send again…").click()
    page.fill("dialog[open] >> input[name=to]", "heir")
    page.click("dialog[open] >> button:text-is('Send again')")
    expect(page.locator(".said")).to_have_text("The dead letter was sent again.")
    house.until_status("heir", "succeeded")
    page.locator("tr:has-text('late-2')").locator("text=Remove…").click()
    page.click("dialog[open] >> button:text-is('Remove')")
    expect(page.locator(".said")).to_have_text("The dead letter was removed.")
    expect(page.locator("[data-live=letters]")).not_to_contain_text("late-")
    [record] = house.do(house.engine.records.list("perdure.dead-letter-removal"))
    assert record.actor == "dashboard"


def test_a_workflow_is_started_and_its_artifact_downloaded(house: House, eyes: Eyes) -> None:
    page = eyes.go("/ui/definitions")
    expect(page.locator("tr:has(a:text-is('place-order'))")).to_contain_text("handles orders")
    page.click("tr:has(a:text-is('reports')) >> text=Start…")
    page.fill("#input", "[]")
    page.click("button:text-is('Start')")
    expect(page.locator("[role=alert]")).to_contain_text("The input must be an object")
    page.fill("#input", '{"name": "r.txt", "text": "well"}')
    page.fill("#id", "made")
    page.click("button:text-is('Start')")
    expect(page.locator(".said")).to_have_text("The run was started.")
    assert actors(house, "made")[-1][1] == "dashboard"
    house.until_status("made", "succeeded")
    page.click("text=Artifacts")
    with page.expect_download() as download:
        page.click("tr:has-text('r.txt') >> text=Download")
    assert download.value.path().read_text() == "well"


def test_an_operation_that_committed_is_undone(house: House, eyes: Eyes) -> None:
    async def place() -> str:
        root = await house.engine.emit(orders, Order(sku="lamp", price=1))
        await root.finished()
        return root.run_ids[0]

    run_id = house.do(place())
    page = eyes.go(f"/ui/runs/{run_id}")
    page.click("text=Undo…")
    page.click("dialog[open] >> text=Undo the run")
    expect(page.locator("h1 + .status")).to_have_text("↩rolled back")
    expect(page.locator("#tree .status")).to_have_text(["↩rolled back"] * 4)


def test_an_emission_that_nobody_has_taken_is_cancelled(house: House, eyes: Eyes) -> None:
    async def ask() -> str:
        approvals = Topic("approvals", str)
        await house.engine.topics.register(approvals, "a person")
        return (await house.engine.emit(approvals, "a piano")).id

    page = eyes.go(f"/ui/runs/{house.do(ask())}")
    page.click("text=Cancel…")
    page.click("dialog[open] >> text=Cancel the run")
    expect(page.locator(".said")).to_be_visible()
    expect(page.locator("#tree .status").first).to_have_text("↩rolled back")


def test_what_is_shown_follows_without_a_reload_and_leaves_the_reader_alone(house: House, eyes: Eyes) -> None:
    page = eyes.go("/ui/runs")
    page.wait_for_selector("[data-live-state=on]")
    page.fill("#q", "what I am about to")
    page.evaluate("window.stays = document.querySelector('#q'); window.mark = 'not reloaded'")
    house.do(house.engine.start(naps(3_600), id="newcomer"))
    row = page.locator("tr:has-text('newcomer')")
    expect(row.locator(".status")).to_have_text("◐suspended")
    page.check("[aria-label='Select newcomer']")
    page.evaluate("document.querySelector(\"[aria-label='Select newcomer']\").focus()")
    house.do(house.engine.run(greet("z"), id="another"))
    expect(page.locator("tr:has-text('another')")).to_be_visible()
    house.do(house.engine.handle("newcomer").cancel())
    expect(row.locator(".status")).to_have_text("–cancelled")
    assert page.evaluate("document.activeElement.value") == "newcomer"
    assert page.is_checked("[aria-label='Select newcomer']")
    assert page.input_value("#q") == "what I am about to"
    assert page.evaluate("window.mark + (document.querySelector('#q') === window.stays)") == "not reloadedtrue"


def test_a_dialog_stays_open_while_the_run_goes_on(house: House, eyes: Eyes) -> None:
    house.do(house.engine.start(naps(3_600), id="talked-about"))
    house.until_status("talked-about", "suspended")
    page = eyes.go("/ui/runs/talked-about")
    page.wait_for_selector("[data-live-state=on]")
    page.click("text=Cancel…")
    page.keyboard.type("because")
    house.do(house.engine.handle("talked-about").update(tags={"now": "tagged"}))
    expect(page.locator(".run-facts")).to_contain_text("tagged")
    page.keyboard.type(" I can")
    expect(page.locator("dialog[open] [name=reason]")).to_have_value("because I can")
    page.keyboard.press("Enter")
    expect(page.locator("h1 + .status")).to_have_text("–cancelled")
    assert house.do(house.engine.handle("talked-about").audit())[-1].actor == "dashboard"


def test_the_theme_is_switched_and_kept(house: House, eyes: Eyes) -> None:
    page = eyes.go("/ui")
    dark = "getComputedStyle(document.documentElement).colorScheme"
    page.click("[data-theme-switch]")
    page.click("[data-theme-switch]")
    assert page.evaluate(dark) == "dark"
    page.reload()
    assert page.evaluate(dark) == "dark"
    expect(page.locator("[data-theme-switch]")).to_have_attribute("aria-label", "Theme: dark")


def test_a_graph_shows_where_its_tokens_are(house: House, eyes: Eyes) -> None:
    house.do(house.engine.start("research", {"input": {"topic": "tides"}}, id="drawn"))
    page = eyes.go("/ui/runs/drawn")
    standing = page.locator("#graph [data-box=node_review].active")
    expect(standing).to_have_count(1)
    [task] = house.until(lambda: house.engine.tasks.list(run="drawn", status="open"))
    house.do(house.engine.tasks.answer(task.id, {"ok": True, "why": "fine"}))
    expect(standing).to_have_count(0)
    expect(page.locator("#graph [data-box=node_review]")).to_contain_text("✓ 1")


def test_the_keyboard_reaches_what_the_mouse_does(house: House, eyes: Eyes) -> None:
    house.do(house.engine.start(naps(3_600), id="by-key"))
    house.until_status("by-key", "suspended")
    page = eyes.go("/ui/runs/by-key")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.focus("text=Cancel…")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("dialog[open] [data-closes], dialog[open] [name=reason]").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("text=Cancel…")).to_be_focused()
