"""`perdure graph`: validate, draw, run."""

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
    assert shell("graph", "validate", "good.yaml").out == "graph lookup is valid\n"
    assert shell("graph", "validate", "shop:lookup", "--json").json() == {
        "graph": "lookup",
        "valid": True,
        "problems": [],
    }
    problems = shell("graph", "validate", "bad.yaml", "--json", code=1).json()["problems"]
    assert any("nowhere" in problem for problem in problems)
    assert "nowhere" in shell.terminal("graph", "validate", "bad.yaml", code=1)
    assert "cannot be read" in shell("graph", "validate", "gone.yaml", code=3).err
    assert "no graph" in shell("graph", "validate", "shop:greet", code=2).err
    assert "neither a file" in shell("graph", "validate", "shop", code=2).err


def test_a_graph_is_drawn(shell: Shell) -> None:
    assert shell("graph", "draw", "good.yaml").out.startswith("flowchart")
    assert "flowchart" in shell.terminal("graph", "draw", "shop:lookup")
    shell("graph", "draw", "good.yaml", "--form", "svg", "-o", "good.svg")
    assert (shell.folder / "good.svg").read_text().startswith("<svg")
    drawn = shell("graph", "draw", "good.yaml", "--form", "yaml", "--json").json()
    assert drawn["text"].startswith("graph: lookup")


def test_a_graph_is_run_here_and_now(shell: Shell) -> None:
    before = len(shell("runs", "list").rows())
    assert shell("graph", "run", "good.yaml", "name=ada").out == '{"found":"hello ada"}\n'
    assert '"hello eve"' in shell.terminal("graph", "run", "shop:lookup", "--input", '{"name": "eve"}')
    assert "ExpressionFailed" in shell("graph", "run", "good.yaml", code=1).err
    assert len(shell("runs", "list").rows()) == before, "it was in memory only"


def test_a_graph_can_be_run_in_the_store_and_its_tokens_drawn(shell: Shell) -> None:
    run = shell("graph", "run", "good.yaml", "name=ada", "--keep", "--id", "kept", "--json").json()["run"]
    assert (run["output"], run["model"]) == ({"found": "hello ada"}, "graph")
    assert shell("graph", "draw", "good.yaml", "--run", "kept").out.startswith("flowchart")
    assert shell("graph", "draw", "good.yaml", "--run", "nope", code=3).out == ""
