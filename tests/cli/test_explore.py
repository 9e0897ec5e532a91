"""`perdure explore`: a workflow of the user's own, with everything that can go wrong."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell

BANK = """\
from perdure import Event, receive, resource, step, workflow

class Bank:
    def __init__(self):
        self.charges = []

class Paid(Event):
    amount: int

@step
async def charge(order: str) -> int:
    resource(Bank).charges.append(order)
    return len(order)

@workflow
async def pays(order: str) -> int:
    await charge(order)
    return (await receive(Paid)).amount
"""


@pytest.fixture(autouse=True)
def module(shell: Shell) -> None:
    (shell.folder / "bank.py").write_text(BANK)


def test_a_mistake_is_reported_with_what_to_call_to_see_it_again(shell: Shell) -> None:
    given = ("bank:pays", "order=o-17", "--world", "bank:Bank", "--event", 'bank:Paid={"amount": 5}')
    report = shell("explore", *given, "--json", code=1).json()
    (finding,) = report["findings"]
    assert (finding["kind"], finding["steps"]) == ("not idempotent", ["charge"])
    assert report["outcomes"][0]["output"] == 5
    out = shell("explore", *given, "--only", finding["trial"], code=1).out
    assert "not idempotent (charge)" in out
    assert "Bank.charges is ['o-17', 'o-17'] instead of ['o-17']" in out


def test_without_a_world_only_results_are_compared(shell: Shell) -> None:
    (shell.folder / "plain.py").write_text(
        "from perdure import step, workflow\n@step\nasync def add(a: int) -> int: return a + 1\n"
        "@workflow\nasync def adds(a: int) -> int: return await add(a)\n"
    )
    assert "nothing was found" in shell("explore", "plain:adds", "--input", '{"a": 2}').out
    assert "nothing was found" in shell.terminal("explore", "plain:adds", "a=2")


@pytest.mark.parametrize(
    ("given", "message", "code"),
    [
        (("bank:charge", "order=o"), "does not name a workflow", 2),
        (("bank:gone",), "has no 'gone'", 3),
        (("bank:pays", "order=o", "--world", "bank:charge"), "does not name a class", 2),
        (("bank:pays", "order=o", "--event", "bank:Bank={}"), "is not a class of events", 2),
        (("bank:pays", "order=o", "--event", "bank:Paid={}"), "missing required field `amount`", 2),
        (("bank:pays", "order=o", "--only", "never"), "there is no trial 'never'", 2),
        (("bank:pays", "number=1"), "number", 2),
        (("bank:pays", "--input", "[1]"), "not an object", 2),
    ],
)
def test_what_cannot_be_explored_is_refused(shell: Shell, given: tuple[str, ...], message: str, code: int) -> None:
    assert message in shell("explore", *given, "--world", "bank:Bank", code=code).err
