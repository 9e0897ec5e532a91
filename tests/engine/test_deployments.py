"""A blocked run goes on by itself once code is deployed that fits, wherever the change is: source files really change,
and new processes read them. Code that was tried already does not claim the run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import asyncio, json, sys

import dependency
import helpers
import shapes
from perdure import Client, Engine, Event, receive, step, workflow
from perdure.cooperation import Operation, Scope, Topic
from perdure.graph import Graph, wait


class Go(Event):
    pass


@step
async def reserve() -> str:
    return "reserved"


@step
async def charge() -> str:
    return "charged"


@workflow
async def flow() -> str:
    done = await (reserve() if {fits} else charge())
    ready = await receive(shapes.Ready)
    await receive(Go)
    return done + ready.text


drawn = Graph("drawn", input=shapes.Question)
pause = drawn.node("pause", wait(Go))
last = drawn.node("last", reserve)
drawn.edge(pause, last)

orders = Topic("orders", shapes.Order)
place = Operation("place", orders)


@place.step
async def one(scope: Scope, order: shapes.Order) -> None:
    pass


CODE = [flow, drawn, place]


async def begin(url: str) -> list[str]:
    async with Engine(url, workflows=CODE) as engine:
        function = await engine.start(flow(), id="function")
        await engine.send(shapes.Ready(text="!"), to=function.id)
        graph = await engine.start(drawn(shapes.Question(text="why")), id="graph")
        while [(await run.status()) for run in (function, graph)] != ["suspended"] * 2:
            await asyncio.sleep(0.01)
        while len((await engine.handle(function.id).history()).journal) < 2:
            await asyncio.sleep(0.01)
    async with Client(url) as client:
        root = await client.emit(orders, shapes.Order(text="o"))
        tree = await client.handle(root.id).tree()
        operation = tree.children[0].run.id
        for id in ("function", "graph"):
            await client.send(Go(), to=id)
    return ["function", "graph", operation]


async def go(url: str, ids: list[str]) -> list[tuple[str, int]]:
    found = {{}}
    async with Engine(url, workflows=CODE, poll_s=0.05) as engine:
        while len(found) < len(ids):
            for id in ids:
                view = await engine.runs.get(id)
                if view.hold is not None or view.status in ("succeeded", "failed"):
                    audit = (await engine.handle(id).history()).audit
                    found[id] = (view.hold.kind if view.hold else view.status, len(audit))
            await asyncio.sleep(0.01)
    return [found[id] for id in ids]


verb, url, *ids = sys.argv[1:]
print(json.dumps(asyncio.run(begin(url) if verb == "begin" else go(url, ids))))
"""

SHAPES = """
import msgspec

import dependency
import helpers
from perdure import Event


class Ready(Event):
    text: str

    def __post_init__(self) -> None:
        assert True, "not ready"


class Question(msgspec.Struct):
    text: str

    def __post_init__(self) -> None:
        assert {fits}, "no question"


class Order(msgspec.Struct):
    text: str

    def __post_init__(self) -> None:
        assert {fits}, "no order"
"""

HELPERS = """
FITS = True


def fits():
    return True


class Rules:
    limit = 3

    def fit(self):
        return self.limit == 3
"""

# What decides whether the code fits, in which file, what is there, and what is there if it does not fit.
CASES = {
    "a function of a module": ("helpers.fits()", "helpers.py", "return True", "return False"),
    "a constant of a module": ("helpers.FITS", "helpers.py", "FITS = True", "FITS = False"),
    "a method": ("helpers.Rules().fit()", "helpers.py", "self.limit == 3", "self.limit == 4"),
    "a dependency": ("dependency.deep.fits()", "installed/dependency/deep.py", "True", "False"),
    "a struct": ("True", "shapes.py", "assert True", "assert False"),
}


class Deployment:
    """The files of a program, and the processes that run it."""

    def __init__(self, folder: Path, url: str, case: str) -> None:
        self.folder, self.url = folder, url
        self.fits, self.changed, self.fitting, self.other = CASES[case]
        files = {
            "program.py": PROGRAM.format(fits=self.fits),
            "shapes.py": SHAPES.format(fits=self.fits),
            "helpers.py": HELPERS,
            "installed/dependency/__init__.py": "from dependency import deep",
            "installed/dependency/deep.py": "def fits():\n    return True\n",
        }
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def deploy(self, *, fits: bool) -> None:
        path = self.folder / self.changed
        was, new = (self.other, self.fitting) if fits else (self.fitting, self.other)
        assert was in path.read_text()
        path.write_text(path.read_text().replace(was, new))

    def run(self, *arguments: str) -> Any:
        paths = [str(self.folder / "installed"), *sys.path]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(self.folder / "program.py"), arguments[0], self.url, *arguments[1:]]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES)
def test_a_blocked_run_goes_on_once_what_changed_fits_again(case: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, f"sqlite:///{tmp_path / 'runs.db'}", case)
    ids = deployment.run("begin")
    deployment.deploy(fits=False)
    assert [kind for kind, _ in deployment.run("go", *ids)] == ["blocked"] * 3
    deployment.deploy(fits=True)
    assert [kind for kind, _ in deployment.run("go", *ids)] == ["succeeded"] * 3


def test_the_same_deployment_does_not_claim_it_again(tmp_path: Path, empty_schema: Callable[[], str]) -> None:
    deployment = Deployment(tmp_path, empty_schema(), "a dependency")
    ids = deployment.run("begin")
    deployment.deploy(fits=False)
    blocked = deployment.run("go", *ids)
    assert [kind for kind, _ in blocked] == ["blocked"] * 3
    assert deployment.run("go", *ids) == blocked  # Nothing was written.
    deployment.deploy(fits=True)
    assert [kind for kind, _ in deployment.run("go", *ids)] == ["succeeded"] * 3
