"""The ways in: `perdure demo`, `new`, `bench`, `serve`, help, completions, and the command as it is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from perdure.cli.app import command
from perdure.cli.errors import Code
from tests.cli.shell import Shell

SRC = Path(__file__).resolve().parents[2] / "src"


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=100
    )


def test_a_new_project_runs_and_its_tests_pass(empty: Shell) -> None:
    written = empty("new", "My Shop", "--json").json()
    assert "workflows.py" in written["files"]
    assert "nothing was written" in empty("new", "My Shop", code=4).err
    assert "perdure worker" in empty.terminal("new", "other")
    empty.folder = empty.folder / "My Shop"
    passed = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", ".", cwd=empty.folder
    )
    assert passed.returncode == 0, passed.stdout + passed.stderr
    with empty.begin("worker") as worker:
        worker.until("  checkout")
        empty("start", "checkout", "order=o-17", "--id", "o-17")
        empty("send", "paid", "amount=100", "--to", "o-17")
        assert empty("runs", "watch", "o-17").out.endswith("parcel o-17, paid 100\n")
    assert (empty.folder / "my-shop.db").exists()


def test_the_demo_kills_a_process_and_loses_nothing(empty: Shell) -> None:
    report = empty("demo", "--json", env={"TMPDIR": str(empty.folder)}).json()
    assert (report["orders"], report["completed"], report["broken"]) == (12, 12, 0)
    assert 0 < report["done_at_kill"] < 48
    assert len(empty("runs", "list", "--store", report["store"]).rows()) == 12


def test_the_demo_can_be_watched(empty: Shell) -> None:
    with empty.begin("demo", terminal=True, env={"TMPDIR": str(empty.folder)}) as demo:
        done = demo.ended()
    assert done.code == 0
    assert "with SIGKILL" in done.out
    assert "✓ 12 of 12 orders completed" in done.out


def test_bench_measures_and_leaves_nothing_behind(shell: Shell) -> None:
    before = sorted(shell.folder.iterdir())
    measured = shell("bench", "--seconds", "0.05", "--json").json()
    assert [bool(one["per_s"]) for one in measured["figures"]] == [True] * 3
    assert "steps, 100 runs in flight" in shell.terminal("bench", "--seconds", "0.05")
    assert sorted(shell.folder.iterdir()) == before
    assert "add --yes" in shell("bench", "--in-store", code=6).err
    assert shell("runs", "list", "--tag", "perdure=bench").out == ""
    shell("bench", "--in-store", "--seconds", "0.05", "--yes")
    assert shell("runs", "list", "--tag", "perdure=bench").out


GROUPS = [name for name, found in command().commands.items() if hasattr(found, "commands")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("group", [[], *([name] for name in GROUPS)], ids=" ".join)
def test_every_verb_has_help_and_json(shell: Shell, group: list[str]) -> None:
    listed = shell(*group, "-h").out.partition("Commands:\n")[2]
    verbs = [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "]
    assert verbs
    for verb in verbs:
        helped = shell(*group, verb, "-h").out
        assert "--json" in helped or "Commands:" in helped, verb


def test_the_lists_of_verbs_fit_a_terminal_of_80_columns(shell: Shell) -> None:
    for group in ([], *([name] for name in GROUPS)):
        listed = shell(*group, "-h", env={"COLUMNS": "80"}).out.partition("Commands:\n")[2]
        assert [line for line in listed.splitlines() if line.endswith("...")] == [], "begin with a shorter sentence"


def test_what_is_no_verb_is_refused(shell: Shell) -> None:
    assert "No such command" in shell("run", code=2).err
    assert "No such option" in shell("runs", "list", "--all-of-them", code=2).err
    assert "Usage" in shell("runs", code=2).out + shell("runs", code=2).err
    assert shell("--version").out.startswith("perdure ")


def test_completions_can_be_shown(shell: Shell) -> None:
    asked = {"_PERDURE_COMPLETE": "complete_bash", "COMP_WORDS": "perdure ru", "COMP_CWORD": "1"}
    assert shell(env=asked).out.split() == ["runs"]
    asked = {"_PERDURE_COMPLETE": "complete_bash", "COMP_WORDS": "perdure runs list --status su", "COMP_CWORD": "4"}
    assert sorted(shell(env=asked).out.split()) == ["succeeded", "suspended"]


def test_a_reader_that_has_had_enough_is_no_error(shell: Shell) -> None:
    command = f"{sys.executable} -m perdure runs list --store {shell.store} | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (len(done.stdout), done.stderr) == (1, "")


def test_the_command_as_it_is_installed_knows_little_before_it_is_asked(tmp_path: Path) -> None:
    settings = tomllib.loads((SRC.parent / "pyproject.toml").read_text())
    assert settings["project"]["scripts"] == {"perdure": "perdure.cli:main"}
    shown = python(
        "-c",
        "import sys; sys.argv = ['perdure', '--help']\n"
        "import atexit, json; atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        "from perdure.cli import main; main()",
        cwd=tmp_path,
    )
    assert shown.returncode == 0
    assert "Commands:" in shown.stdout
    loaded = set(json.loads(shown.stderr))
    heavy = {"asyncpg", "httpx", "yaml", "common_expression_language", "perdure.storage.sqlite", "perdure.graph"}
    assert not loaded & heavy


def test_without_its_extra_it_says_what_to_install(tmp_path: Path) -> None:
    shown = python("-c", "import sys; sys.modules['typer'] = None\nfrom perdure.cli import main; main()", cwd=tmp_path)
    assert shown.returncode == 1
    assert shown.stderr == "perdure: the command line needs typer and rich: pip install 'perdure[cli]'\n"


def test_without_the_http_api_serve_says_what_to_install(tmp_path: Path) -> None:
    started = python(
        "-c",
        "import sys; sys.argv = ['perdure', 'serve']; sys.modules['perdure.http'] = None\n"
        "from perdure.cli import main; main()",
        cwd=tmp_path,
    )
    assert started.returncode == 1
    assert "pip install 'perdure[http]'" in started.stderr


def test_the_docs_have_every_exit_code_and_every_verb(shell: Shell) -> None:
    page = (SRC.parent / "docs" / "cli.md").read_text()
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert codes == {int(code) for code in Code}
    listed = shell("-h").out.partition("Commands:\n")[2]
    verbs = [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "]
    table = page.partition("## Verbs")[2].partition("## ")[0]
    assert [verb for verb in verbs if f"| `{verb}" not in table] == []
