"""Definitions: list the workflows that live engines have, and start a run."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from perdure.dashboard.forms import json_of
from perdure.dashboard.page import Action, Form, Page, Shown, Visit, Wrong
from perdure.dashboard.renderer import url
from perdure.errors import InvalidArguments, RunExists, UnknownWorkflow, UnstorableValue


class Definition(Struct, frozen=True, kw_only=True):
    """A workflow that live engines have."""

    workflow: str
    version: str
    engines: list[str]
    topics: list[str]  # the topics whose messages it handles, if it is an operation
    picture: Any


async def show(visit: Visit) -> Shown:
    found: dict[tuple[str, str], list[str]] = {}
    for engine in await visit.client.engines.list():
        for pair in engine.workflows:
            found.setdefault(pair, []).append(engine.host)
    handlers = await visit.client.topics.handlers()
    given = visit.given
    return {
        "title": "Definitions",
        "definitions": [
            Definition(
                workflow=name,
                version="" if name in handlers.get(version, ()) else version,
                engines=hosts,
                topics=[version] if name in handlers.get(version, ()) else [],
                picture=await visit.graphs.plain(name, version),
            )
            for (name, version), hosts in sorted(found.items())
        ],
        "start": given.text("workflow") if given is not None else visit.asked("start"),
        "version": given.text("version") if given is not None else visit.asked("version"),
        "input": given.text("input") if given is not None else "{}",
        "id": given.text("id") if given is not None else "",
    }


async def start(visit: Visit, form: Form) -> str:
    """Start a run. If the form has an id, sending the form again starts no second run."""
    arguments = json_of(form.text("input"), "The input")
    if not isinstance(arguments, dict):
        raise Wrong("The input must be an object: the arguments by name, or {} for none.")
    try:
        run = await visit.client.start(
            form.text("workflow").strip(),
            arguments,
            version=form.text("version").strip() or None,
            id=form.text("id").strip() or None,
            actor=visit.caller.name,
        )
    except (InvalidArguments, RunExists, UnknownWorkflow, UnstorableValue) as error:
        raise Wrong(str(error)) from error
    return url("runs", run.id, said="started")


page = Page(
    name="definitions",
    path="/definitions",
    title="Definitions",
    show=show,
    actions=[Action("/definitions", start)],
)
