"""`perdure runs watch`: what happens, as it happens."""

from __future__ import annotations

import json
import signal

from tests.cli.shell import Shell


def test_a_run_that_has_ended_is_told_at_once(shell: Shell) -> None:
    lines = shell("runs", "watch", "ada", "--json").json_lines()
    assert [list(line) for line in lines] == [["entry"], ["run"]]
    assert lines[1]["run"]["output"] == "hello ada"
    assert [row[1] for row in shell("runs", "watch", "ada").rows()] == ["step", "succeeded"]
    assert "ValueError: no boom-1" in shell("runs", "watch", "boom-1", code=1).out


def test_a_run_is_followed_to_its_end(shell: Shell) -> None:
    with shell.begin("worker", "shop") as worker:
        worker.until("serves")
        with (
            shell.begin("runs", "watch", "o-17", terminal=True) as screen,
            shell.begin("runs", "watch", "o-17", "--json") as lines,
        ):
            screen.until("waits for event paid")
            lines.until('"suspended"')
            shell("send", "paid", "--value", "100", "--to", "o-17")
            assert json.loads(lines.ended().out.splitlines()[-1])["run"]["output"] == 100
            done = screen.ended()
        assert done.code == 0
        assert "succeeded" in done.out


def test_watching_ends_with_its_time(shell: Shell) -> None:
    assert (
        "has not ended within 0.01s; it continues" in shell("runs", "watch", "o-17", "--timeout", "0.01s", code=7).err
    )


def test_all_runs_are_watched_until_ctrl_c(shell: Shell) -> None:
    with (
        shell.begin("runs", "watch", terminal=True) as screen,
        shell.begin("runs", "watch", "--workflow", "pays", "--json") as lines,
    ):
        screen.until("suspended")
        lines.until("o-17")
        shell("runs", "cancel", "o-17")
        lines.until('"cancelled"')
        screen.until("cancelled")
        screen.type("\x03")
        lines.signal(signal.SIGINT)
        assert (screen.ended().code, lines.ended().code) == (130, 130)
