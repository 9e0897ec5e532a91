"""How large classes and functions may get. Each list of what is larger today only shrinks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Engine
from tests.api.surface import facets, methods

SRC = Path(__file__).resolve().parents[2] / "src"

VERBS_MAX = 14
METHODS_MAX = 30
PARAMETERS_MAX = 12
LINES_MAX = 70

# What is larger than it should be, and how large it is. Make it smaller, and its number; add nothing.
MANY_METHODS: dict[str, int] = {}
MANY_PARAMETERS: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}


def definitions() -> Iterator[tuple[str, ast.AST]]:
    """Return each class and function of the package by its name: module:Class.method."""
    for path in sorted((SRC / "perdure").rglob("*.py")):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts)
        ahead: list[tuple[str, ast.AST]] = [(f"{module}:", ast.parse(path.read_text()))]
        while ahead:
            prefix, node = ahead.pop()
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{prefix}{child.name}", child
                    ahead.append((f"{prefix}{child.name}.", child))
                else:
                    ahead.append((prefix, child))


def sizes(what: str) -> dict[str, int]:
    """Return how many methods, constructor parameters or lines each class or function has."""
    found: dict[str, int] = {}
    for name, node in definitions():
        if isinstance(node, ast.ClassDef):
            functions = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            if what == "methods":
                found[name] = len({one.name for one in functions})
            made = next((one for one in functions if one.name == "__init__"), None)
            if what == "parameters" and made is not None:
                found[name] = len([*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs]) - 1
        elif what == "lines" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found[name] = max(lines, found.get(name, 0))
    return found


@pytest.mark.parametrize("kind", [Engine, Client])
def test_an_engine_and_a_client_have_few_verbs(kind: type[Any]) -> None:
    assert len(methods(kind)) <= VERBS_MAX, sorted(methods(kind))


def test_a_client_has_what_an_engine_has() -> None:
    assert set(methods(Engine)) - set(methods(Client)) == {"recover"}
    assert set(methods(Client)) <= set(methods(Engine))
    assert facets(Client) == facets(Engine)


def test_nothing_is_inherited_and_nothing_is_mixed_in() -> None:
    for kind in (Engine, Client, *facets().values()):
        assert kind.__bases__ == (object,), kind


@pytest.mark.parametrize(
    ("what", "most", "larger"),
    [
        ("methods", METHODS_MAX, MANY_METHODS),
        ("parameters", PARAMETERS_MAX, MANY_PARAMETERS),
        ("lines", LINES_MAX, LONG_FUNCTIONS),
    ],
)
def test_nothing_grows(what: str, most: int, larger: dict[str, int]) -> None:
    found = sizes(what)
    grown = {name: size for name, size in found.items() if size > max(most, larger.get(name, 0))}
    assert not grown, f"more than {most} {what}: make these smaller"
    mended = {name for name in larger if found.get(name, 0) <= most}
    assert not mended, f"these have at most {most} {what} by now: take them out of the list"


def test_sizes_are_measured() -> None:
    assert sizes("methods")["perdure.engine:Engine"] == 6
    assert sizes("parameters")["perdure.engine:Engine"] == 9
    assert sizes("lines")["perdure.api.verbs:run"] == 14
