"""The examples do what they promise."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "examples"


def test_the_demo_survives_its_kill(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "shop" / "demo.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed process 1 with SIGKILL" in done.stdout
    assert "✓ 24 of 24 orders completed" in done.stdout
    assert "✓ 0 steps ran again after their entry was committed" in done.stdout
    assert "What to try next" in done.stdout
    assert "make demo-ui" in done.stdout


def test_services_cooperate_and_undo_together(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "cooperation.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[2] == "lamp is yours: 40 paid"
    assert lines[3:7] == ["order for piano", "piano reserved", "piano put back", "sorry, no piano"]
    assert "  ValueError: 9000 is more than the card allows in step 'authorise' of charge[" in done.stdout
    # They were emitted at the same time, so either may come first.
    assert sorted(line.lstrip(" │├└─").split("  ")[0] for line in lines[-3:]) == [
        "charge (operation) rolled_back",
        "pick (function) rolled_back",
        "take-from-stock (operation) rolled_back",
    ]


def test_hello_greets_once_however_often_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-u", str(EXAMPLES / "hello.py")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "greeting ada\n"
        wait_for_entry(tmp_path / "hello.db", "greet")
        first.kill()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert again.stdout == "hello ada, and welcome back\n"


def test_the_script_ships_once_however_often_it_is_started(tmp_path: Path) -> None:
    assert run(EXAMPLES / "script.py", tmp_path) == "shipping o-17\nparcel of o-17, paid 100\n"
    assert run(EXAMPLES / "script.py", tmp_path) == "parcel of o-17, paid 100\n"


def test_the_shop_is_asked_over_http_and_sells_once(tmp_path: Path) -> None:
    for _ in range(2):
        told = run(EXAMPLES / "http_shop.py", tmp_path)
        assert told == "the run has succeeded\nparcel of o-17, paid 100\n"


def test_the_approval_waits_for_its_answer_without_a_process(tmp_path: Path) -> None:
    example = EXAMPLES / "graph_approval.py"
    assert run(example, tmp_path) == "to be answered: Refund o-17?\n"
    assert "● 1" in (tmp_path / "approval.svg").read_text(encoding="utf-8")
    answered = run(example, tmp_path, None, "yes")
    letter = "letter-o-17 Dear customer, we paid 100 for o-17.\n"
    assert answered == "paying back 100 for o-17\n{'said': 'paid'}\n" + letter
    assert run(example, tmp_path, None, "yes") == "{'said': 'paid'}\n" + letter


def test_the_lively_shop_is_open_for_visitors_until_it_is_told_to_end(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "dashboard.py"), "0"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=env) as shop:
        try:
            assert shop.stdout is not None
            told = shop.stdout.readline()
            url = re.search(r"http://\S+", told)
            assert url is not None, told
            for page in ("", "/runs", "/definitions"):
                with urlopen(url[0] + page, timeout=60) as answer:
                    assert b"checkout" in answer.read() or not page
        finally:
            shop.terminate()
    assert shop.returncode == 0


def test_the_django_shop_takes_an_order_and_its_payment(tmp_path: Path) -> None:
    shop = EXAMPLES / "django_shop"
    with subprocess.Popen([sys.executable, shop / "engine.py"], cwd=tmp_path) as engine:
        try:
            run(HERE / "visit_django.py", tmp_path, shop)
        finally:
            engine.terminate()
    assert engine.returncode == 0
    assert "no issues" in run(shop / "manage.py", tmp_path, shop, "check")


def test_the_fastapi_shop_takes_an_order_and_its_payment(tmp_path: Path) -> None:
    run(HERE / "visit_fastapi.py", tmp_path, EXAMPLES / "fastapi_shop")


def run(program: Path, folder: Path, path: Path | None = None, *arguments: str) -> str:
    """Run a program in a folder, with `path` among those where it finds modules; what it printed."""
    paths = [str(path)] if path else []
    done = subprocess.run(
        [sys.executable, program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_for_entry(store: Path, name: str) -> None:
    """Ask the journal until it has the entry; the test's timeout ends this if it never comes."""
    with closing(sqlite3.connect(store, timeout=10)) as connection:
        while not connection.execute("select 1 from journal where name = ?", (name,)).fetchall():
            pass


def test_research_looks_everything_up_once(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "graph_research.py")]
    report = "tides: a note on 'what are tides'; a note on 'who studies tides'; a note on 'when do tides turn'\n"
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert sorted(first.stdout.splitlines()[:3]) == [
        "looking up: what are tides",
        "looking up: when do tides turn",
        "looking up: who studies tides",
    ]
    assert first.stdout.endswith(report)
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert again.stdout == report


def test_the_example_in_the_readme_is_hello() -> None:
    code = (EXAMPLES / "hello.py").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "".join(f"{line}\n" for line in code.splitlines() if line) in readme.replace("\n\n", "\n")
