"""`perdure worker`, `start` and `engines`."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing

from tests.cli.shell import PATIENCE_S, Shell


def test_a_worker_says_what_it_serves_and_runs_what_is_started(shell: Shell) -> None:
    with shell.begin("worker", "shop", terminal=True) as worker:
        worker.until("Ctrl-C stops it")
        assert "serves 11 workflows" in worker.written
        assert "  lookup" in worker.written
        assert shell("start", "greet", "name=bob", "--wait").out == '"hello bob"\n'
        assert shell.terminal("start", "greet", "name=eve", "--wait").strip() == '"hello eve"'
        started = shell("start", "greet", "--input", '{"name": "kim"}', "--id", "kim", "--tag", "a=b", "--json").json()
        assert started == {"id": "kim"}
        shell("runs", "watch", "kim")
        run = shell("runs", "show", "kim", "--json").json()["run"]
        assert (run["tags"], run["output"]) == ({"a": "b"}, "hello kim")
        assert shell("start", "greet", "name=kim", "--id", "kim").out == "kim\n", "the same again is the same run"
        assert "perdure runs show kim" in shell("start", "greet", "name=tom", "--id", "kim", code=4).err
        failed = shell("start", "boom", "name=x", "--id", "x", "--wait", code=1)
        assert "ValueError: no x" in failed.err
        assert "perdure runs retry x" in failed.err
        assert shell("start", "boom", "name=x", "--wait", "--json", code=1).json()["run"]["status"] == "failed"
        timed = shell("start", "pays", "order=o", "--timeout", "10ms", "--deadline", "1h", code=7)
        assert "it continues" in timed.err
        assert "an object" in shell("start", "greet", "--input", "[]", code=2).err

        [one] = shell("engines", "list", "--json").json()["engines"]
        assert one["pid"] == worker.pid
        assert ["greet", ""] in one["workflows"]
        assert shell("engines", "list").rows()[0][1] == "engine"
        assert "greet" in shell.terminal("engines", "list")
        definitions = shell("definitions", "list", "--json").json()["definitions"]
        assert ("greet", [one["id"]]) in [(each["workflow"], each["engines"]) for each in definitions]
        assert "greet" in [row[0] for row in shell("definitions", "list").rows()]
        assert "greet" in shell.terminal("definitions", "list")
        worker.type("\x03")
        assert worker.ended().code == 0
        assert "stopped" in worker.written
    assert "no engine is alive" in shell.terminal("engines", "list")
    assert "no live engine has a workflow" in shell.terminal("definitions", "list")


def test_a_worker_lets_running_steps_end(shell: Shell) -> None:
    with shell.begin("worker", "shop", "--json") as worker:
        worker.until("serving")
        shell("start", "works", "seconds=0.3", "--id", "w")
        wait_for_step(shell)
        worker.signal(signal.SIGTERM)
        done = worker.ended()
    assert done.code == 0
    assert [line["event"] for line in done.json_lines()] == ["serving", "stopping", "stopped"]
    assert json.loads(done.out.splitlines()[1])["steps_running"] == 1
    assert len(shell("runs", "history", "w", "--json").json()["journal"]) == 1, "the step's result is stored"


def test_a_second_signal_stops_a_worker_at_once(shell: Shell) -> None:
    with shell.begin("worker", "shop", "--grace", "1h") as worker:
        worker.until("Ctrl-C stops it")
        shell("start", "works", "seconds=3600", "--id", "w")
        wait_for_step(shell)
        worker.signal(signal.SIGINT)
        worker.until("stopping after SIGINT: 1 running steps")
        worker.signal(signal.SIGINT)
        assert worker.ended().code == 130
    assert "stopped at once" in worker.written
    assert shell("runs", "cancel", "w").out == "cancelled w\n", "nobody has it any more"


def wait_for_step(shell: Shell) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not (shell.folder / "idling").exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_worker_takes_what_a_name_stands_for(shell: Shell) -> None:
    for target, count in (("shop:greet", 1), ("shop:ALL", 11), ("shop:engine", 1), ("./shop.py:lookup", 1)):
        with shell.begin("worker", target, "--log-level", "error") as worker:
            worker.until("Ctrl-C stops it")
            assert f"serves {count} workflows" in worker.written, target
            worker.signal(signal.SIGTERM)
            assert worker.ended().code == 0


def test_modules_that_cannot_be_had_are_told_without_our_own_lines(shell: Shell) -> None:
    (shell.folder / "broken.py").write_text("import shop\n\nraise RuntimeError('of its own')\n")
    (shell.folder / "lacking.py").write_text("import not_installed\n")
    (shell.folder / "bare.py").write_text("x = 1\n")
    assert "there is no module 'gone'" in shell("worker", "gone", code=3).err
    broken = shell("worker", "broken", code=1).err
    assert 'broken.py", line 3' in broken
    assert "RuntimeError: of its own" in broken
    assert "perdure/cli" not in broken
    assert "No module named 'not_installed'" in shell("worker", "lacking", code=1).err
    assert "has no 'nobody'" in shell("worker", "shop:nobody", code=3).err
    assert "define no workflow" in shell("worker", "bare", code=2).err
    assert "no module with workflows is named" in shell("worker", code=2).err
    assert "in memory" in shell("worker", "shop", "--store", "memory://", code=2).err
    assert "no log level" in shell("worker", "shop", "--log-level", "loud", code=2).err


def test_what_no_engine_has_can_be_started_only_for_later(shell: Shell) -> None:
    refused = shell("start", "greet", "name=ada", code=3)
    assert "perdure worker MODULE" in refused.err
    assert shell("start", "greet", "name=ada", "--version", "", "--id", "later").out == "later\n"
    with shell.begin("worker", "shop") as worker:
        worker.until("serves")
        shell("runs", "watch", "later")


def test_a_worker_whose_engine_cannot_go_on_ends_and_says_why(shell: Shell) -> None:
    with shell.begin("worker", "shop:impatient", "--log-level", "error") as worker:
        worker.until("Ctrl-C stops it")
        with closing(sqlite3.connect(shell.folder / "shop.db", timeout=60)) as connection:
            connection.execute("alter table journal rename to elsewhere")
            shell("start", "greet", "name=zoe", "--id", "zoe", "--version", "")
            done = worker.ended()
            assert done.code == 5
            assert "has not the tables that Perdure made" in done.err
            assert "after 1 new starts" in done.err
            assert "repair the store (perdure doctor helps)" in done.err
            found = {one["check"]: one for one in shell("doctor", "--json", code=1).json()["findings"]}
            assert found["store"]["state"] == "problem"
            assert "lacks table journal" in found["store"]["found"]
            connection.execute("alter table elsewhere rename to journal")
    found = {one["check"]: one for one in shell("doctor", "--json", code=1).json()["findings"]}
    assert found["store"]["state"] == "ok"
    assert "none is alive" in found["engines"]["found"]


def test_the_doctor_does_not_count_an_engine_that_was_killed(shell: Shell) -> None:
    with shell.begin("worker", "shop") as worker:
        worker.until("Ctrl-C stops it")
        worker.signal(signal.SIGKILL)
        worker.ended()
    found = {one["check"]: one for one in shell("doctor", "--json", code=1).json()["findings"]}
    assert "none is alive" in found["engines"]["found"]
