"""Which code an engine has, as the coordinator sees it: a set that follows what is defined."""

from __future__ import annotations

import weakref

import pytest

from perdure import workflow
from perdure.cooperation import Operation, Topic
from perdure.models.functions import define
from perdure.models.functions.define import forget
from perdure.registry import Registry


def test_an_engine_of_all_workflows_has_those_that_are_defined_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests define workflows and operations of the same name.
    monkeypatch.setattr(define, "_WORKFLOWS", weakref.WeakSet())
    monkeypatch.setattr("perdure.registry.decorated_operations", list)
    registry = Registry(None)
    registry.load()
    assert ("", "code.later", "") not in registry.code()

    @workflow(name="code.later")
    async def later() -> None: ...

    assert {("", "code.later", ""), ("function", "code.later", "")} <= registry.code()
    assert registry.code() is registry.code()

    @workflow(name="code.later")
    async def same() -> None: ...

    assert ("", "code.later", "") not in registry.code()  # It is nobody's.
    forget(same)
    assert ("", "code.later", "") in registry.code()
    forget(later)


def test_an_engine_of_some_workflows_has_these_alone() -> None:
    @workflow(name="code.given")
    async def given() -> None: ...

    @workflow(name="code.other")
    async def other() -> None: ...

    old, new = Operation("op", Topic("code", dict)), Operation("op", Topic("code", dict), version="2")
    for operation in (old, new):

        @operation.step
        async def work(scope: object, message: object) -> None: ...

    registry = Registry([given, old, new])
    registry.load()
    assert registry.code() == {
        ("", "code.given", ""),
        ("function", "code.given", ""),
        ("operation", "op", "code"),
        ("operation", "op", ""),
        ("operation", "op", "code\x1f2"),
    }
    for one in (given, other):
        forget(one)
