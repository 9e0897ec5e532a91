"""Every verb has a test in a terminal, and one in a pipe with --json: what tests here call is read from their text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perdure.cli.app import command

HERE = Path(__file__).resolve().parent


class Call(NamedTuple):
    words: tuple[str, ...]
    in_terminal: bool
    with_json: bool


def verbs(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All verbs and those below them, as words."""
    for name, below in found.commands.items():
        if hasattr(below, "commands"):
            yield from verbs(below, (*path, name))
        else:
            yield (*path, name)


def calls() -> Iterator[Call]:
    """What tests do with a shell: `shell("runs", …)`, `shell.terminal(…)`, `shell.begin(…, terminal=True)`."""
    for file in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            way = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            who = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            if isinstance(who, ast.Name) and who.id in ("shell", "empty") and way in ("", "terminal", "begin"):
                words = [one.value if isinstance(one, ast.Constant) else None for one in node.args]
                is_told = any(one.arg == "terminal" for one in node.keywords)
                literal = tuple(word for word in words if isinstance(word, str))
                yield Call(literal, way == "terminal" or is_told, "--json" in literal)


CALLS = tuple(calls())
VERBS = tuple(verbs(command()))


def test_there_are_verbs() -> None:
    assert {("serve",), ("worker",), ("runs", "list"), ("tokens", "create")} <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_verb_is_tried_in_a_terminal_and_in_a_pipe_with_json(verb: tuple[str, ...]) -> None:
    mine = [call for call in CALLS if call.words[: len(verb)] == verb]
    assert any(call.in_terminal for call in mine), "no test has it in a terminal"
    assert any(call.with_json and not call.in_terminal for call in mine), "no test has it in a pipe with --json"
