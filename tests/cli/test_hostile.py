"""What is stored comes from anybody. It must not steer the terminal of whoever looks at it, nor break a line."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell

EVIL = "\x1b]0;owned\x07\x1b[2J\u202etxt\r\nfake\tcell [bold]x[/bold] \x9b31m"


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
        ["runs", "history", EVIL, "--audit"],
        ["runs", "tree", EVIL],
        ["runs", "watch", EVIL, "--timeout", "0.3s"],
        ["runs", "resume", EVIL],
        ["runs", "cancel", EVIL],
        ["events"],
        ["events", "--to", EVIL],
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
    assert "Traceback" not in shown
    for steering in ("\x1b]0", "\x1b[2J", "\u202e", "\x9b", "\x07", "\nfake"):
        assert steering not in raw


def test_a_line_stays_a_line_and_a_cell_a_cell(hostile: Shell) -> None:
    rows = hostile("runs", "list", "--hold", "paused").rows()
    assert len(rows) == 1
    assert len(rows[0]) == 6
    [run] = hostile("runs", "list", "--hold", "paused", "--json").json()["runs"]
    assert run["id"] == EVIL
    assert run["tags"] == {EVIL: EVIL}
