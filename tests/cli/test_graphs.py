"""`perdure graph`: validate, draw, run; and runs of graphs: tokens, events, definition, drawing."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell

GOOD = """\
graph: lookup
nodes:
  find: {kind: function, function: "shop:hello", input: {name: input.name}}
output: {found: nodes.find}
"""
BAD = """\
graph: lookup
nodes:
  find: {kind: function, function: "shop:hello", input: {name: input.name +}}
edges:
  - {from: find, to: nowhere}
"""


@pytest.fixture(autouse=True)
def files(shell: Shell) -> None:
    (shell.folder / "good.yaml").write_text(GOOD)
    (shell.folder / "bad.yaml").write_text(BAD)


def test_a_graph_is_checked(shell: Shell) -> None:
    assert shell("graph", "validate", "good.yaml", "-m", "shop").out == "graph lookup is valid\n"
    assert shell("graph", "validate", "shop:lookup", "--json").json() == {
        "graph": "lookup",
        "valid": True,
        "problems": [],
    }
    problems = shell("graph", "validate", "bad.yaml", "-m", "shop", "--json", code=1).json()["problems"]
    assert any("nowhere" in problem for problem in problems)
    assert "nowhere" in shell.terminal("graph", "validate", "bad.yaml", "-m", "shop", code=1)
    assert "cannot read" in shell("graph", "validate", "gone.yaml", code=3).err
    assert "not a graph" in shell("graph", "validate", "shop:greet", code=2).err
    assert "neither a file" in shell("graph", "validate", "shop", code=2).err


def test_nothing_is_imported_that_was_not_named(shell: Shell) -> None:
    (shell.folder / "trap.py").write_text("from pathlib import Path\nPath('sprung').touch()\ndef go(): ...\n")
    text = 'graph: trap\ninput_schema: "trap:Input"\nnodes:\n  a: {kind: function, function: "trap:go"}\n'
    (shell.folder / "trap.yaml").write_text(text)
    problems = shell("graph", "validate", "trap.yaml", "--json", code=1).json()["problems"]
    assert "nothing is imported for a definition: import trap first (on the command line: --module trap)" in problems[0]
    for verb in ("draw", "run"):
        assert "--module trap" in shell("graph", verb, "trap.yaml", code=2).err
    assert not (shell.folder / "sprung").exists()
    (shell.folder / "trap.yaml").write_text(text.replace('input_schema: "trap:Input"\n', ""))
    assert "decorate a function with @step" in shell("graph", "validate", "trap.yaml", "-m", "trap", code=1).out


def test_a_graph_is_drawn(shell: Shell) -> None:
    assert shell("graph", "draw", "good.yaml", "-m", "shop").out.startswith("flowchart")
    assert "flowchart" in shell.terminal("graph", "draw", "shop:lookup")
    shell("graph", "draw", "good.yaml", "-m", "shop", "--form", "svg", "-o", "good.svg")
    assert (shell.folder / "good.svg").read_text().startswith("<svg")
    drawn = shell("graph", "draw", "good.yaml", "-m", "shop", "--form", "yaml", "--json").json()
    assert drawn["text"].startswith("graph: lookup")


def test_a_graph_is_run_here_and_now(shell: Shell) -> None:
    before = len(shell("runs", "list").rows())
    assert shell("graph", "run", "good.yaml", "-m", "shop", "name=ada").out == '{"found":"hello ada"}\n'
    assert '"hello eve"' in shell.terminal("graph", "run", "shop:lookup", "--input", '{"name": "eve"}')
    assert "ExpressionFailed" in shell("graph", "run", "good.yaml", "-m", "shop", code=1).err
    assert len(shell("runs", "list").rows()) == before, "it was in memory only"


def test_a_graph_can_be_run_in_the_store_and_its_tokens_drawn(shell: Shell) -> None:
    run = shell("graph", "run", "good.yaml", "-m", "shop", "name=ada", "--keep", "--id", "kept", "--json").json()["run"]
    assert (run["output"], run["model"]) == ({"found": "hello ada"}, "graph")
    assert shell("runs", "drawing", "kept").out.startswith("flowchart")
    assert shell("runs", "drawing", "kept", "good.yaml", "-m", "shop", "--json").json()["text"].startswith("flowchart")
    assert "flowchart" in shell.terminal("runs", "drawing", "kept")
    shell("runs", "drawing", "kept", "--form", "svg", "-o", "kept.svg")
    assert (shell.folder / "kept.svg").read_text().startswith("<svg")
    assert shell("runs", "drawing", "nope", code=3).out == ""


def test_a_runs_tokens_events_and_definition_are_shown_without_its_code(shell: Shell) -> None:
    shell("graph", "run", "good.yaml", "-m", "shop", "name=ada", "--keep", "--id", "kept")
    (shell.folder / "good.yaml").unlink()
    tokens = shell("runs", "tokens", "kept", "--json").json()
    assert [(one["id"], one["path"], one["node"], one["state"]) for one in tokens["tokens"]] == [
        (1, "root", "find", "completed")
    ]
    assert shell("runs", "tokens", "kept").rows()[0][:4] == ["1", "root", "find", "completed"]
    assert "completed" in shell.terminal("runs", "tokens", "kept")
    events = shell("runs", "graph-events", "kept", "--json").json()["events"]
    assert [one["kind"] for one in events][:3] == ["run_started", "token_spawned", "node_started"]
    assert [row[2] for row in shell("runs", "graph-events", "kept", "--after", "3", "--limit", "1").rows()] == [
        "node_completed"
    ]
    view = shell("runs", "definition", "kept", "--json").json()
    assert (view["workflow"], list(view["definition"]["nodes"])) == ("lookup", ["find"])
    assert '"graph": "lookup"' in shell("runs", "definition", "kept").out
    assert "node_completed" in shell.terminal("runs", "graph-events", "kept")
    assert '"graph": "lookup"' in shell.terminal("runs", "definition", "kept")
    for word in ("tokens", "graph-events", "definition"):
        assert shell("runs", word, "nope", code=3).out == ""
