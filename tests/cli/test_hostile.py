"""What is stored comes from anybody. It must not steer the terminal of whoever looks at it, nor break a line."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Engine, publish, receive, stream, workflow
from tests.cli.shell import Shell

EVIL = "\x1b]0;owned\x07\x1b[2J\u202etxt\r\nfake\tcell [bold]x[/bold] \x9b31m"

NAME = KEY = EVIL.replace("\r\n", " ")  # A name is one line.


@pytest.fixture
def hostile(shell: Shell) -> Shell:
    shell("start", EVIL, f"a={EVIL}", "--version", EVIL, "--id", EVIL, "--tag", f"{EVIL}={EVIL}")
    shell("send", EVIL, f"{EVIL}={EVIL}", "--to", EVIL)
    shell("runs", "pause", EVIL, "--reason", EVIL)
    shell("send", EVIL, f"x={EVIL}")
    return shell


@pytest.mark.parametrize(
    "verb",
    [
        ["runs", "list"],
        ["runs", "show", EVIL],
        ["runs", "audit", EVIL],
        ["runs", "tree", EVIL],
        ["runs", "watch", EVIL, "--timeout", "0.3s"],
        ["runs", "resume", EVIL],
        ["runs", "cancel", EVIL],
        ["events", "list"],
        ["events", "list", "--to", EVIL],
        ["doctor"],
        ["runs", "show", f"{EVIL} nobody"],
        ["start", EVIL],
        ["send", EVIL, "--to", f"{EVIL} nobody"],
    ],
    ids=lambda verb: " ".join(verb[:2]).replace(EVIL, "x"),
)
def test_nothing_that_is_stored_or_given_steers_the_terminal(hostile: Shell, verb: list[str]) -> None:
    with hostile.begin(*verb, terminal=True) as command:
        shown = command.ended().out
        raw = command.raw.decode()
    assert "owned" in shown, "it is shown"
    check_harmless(raw)


@pytest.mark.parametrize(
    "verb",
    [
        ["records", "put", EVIL, EVIL, f"a={EVIL}"],
        ["records", "list", EVIL],
        ["records", "list", f"{EVIL} nobody"],
        ["records", "show", EVIL, EVIL],
        ["records", "show", EVIL, f"{EVIL} nobody"],
        ["topics", "register", EVIL, EVIL],
        ["topics", "list"],
        ["topics", "retire", EVIL, f"{EVIL} nobody"],
        ["topics", "hierarchy", f"{EVIL} nobody"],
        ["topics", "message", f"{EVIL} nobody"],
        ["topics", "cancel-token", EVIL, "--reason", EVIL],
        ["dead-letters", "show", f"{EVIL} nobody"],
        ["dead-letters", "remove", f"{EVIL} nobody"],
        ["runs", "cancel", "--workflow", EVIL, "--dry-run"],
        ["runs", "retry", EVIL],
        ["runs", "update", EVIL, "--tag", f"{EVIL}={EVIL}"],
        ["runs", "drawing", EVIL],
        ["tasks", "show", f"{EVIL} nobody"],
        ["artifacts", "show", f"{EVIL} nobody"],
        ["audit", "export"],
    ],
    ids=lambda verb: " ".join(verb[:2]),
)
def test_no_other_command_lets_it_steer_the_terminal(hostile: Shell, verb: list[str]) -> None:
    hostile("records", "put", EVIL, EVIL, f"{EVIL}={EVIL}")
    hostile("topics", "register", EVIL, EVIL)
    with hostile.begin(*verb, terminal=True) as command:
        shown = command.ended().out
        raw = command.raw.decode()
    assert "owned" in shown, shown
    check_harmless(raw)


@workflow(name="hostile")
async def says_evil_things() -> None:
    await publish(KEY, EVIL)
    await stream("lines").append(EVIL)
    await receive(NAME, where={KEY: EVIL})


async def run_it(store: str) -> None:
    async with Engine(store, workflows=[says_evil_things]) as engine:
        run = await engine.start(says_evil_things(), id="evil")
        while await run.status() != "suspended":
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("verb", [["waits", "evil"], ["published", "evil"], ["stream", "evil", "lines"]], ids="-".join)
def test_nothing_that_a_run_shows_or_waits_for_steers_the_terminal(shell: Shell, verb: list[str]) -> None:
    assert shell.store is not None
    asyncio.run(run_it(shell.store))
    with shell.begin("runs", *verb, terminal=True) as command:
        shown, raw = command.ended().out, command.raw.decode()
    assert "owned" in shown
    check_harmless(raw)


def check_harmless(raw: str) -> None:
    assert "Traceback" not in raw
    for steering in ("\x1b]0", "\x1b[2J", "\u202e", "\x9b", "\x07", "\nfake"):
        assert steering not in raw


def test_a_line_stays_a_line_and_a_cell_a_cell(hostile: Shell) -> None:
    rows = hostile("runs", "list", "--hold", "paused").rows()
    assert len(rows) == 1
    assert len(rows[0]) == 6
    [run] = hostile("runs", "list", "--hold", "paused", "--json").json()["runs"]
    assert run["id"] == EVIL
    assert run["tags"] == {EVIL: EVIL}
