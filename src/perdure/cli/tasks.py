"""`perdure tasks`: what workflows ask people and other programs for."""

from __future__ import annotations

import sys
from typing import Annotated, Any, cast

import typer

from perdure.cli import params
from perdure.cli.desk import Desk
from perdure.cli.failures import Refusal
from perdure.cli.settings import actor
from perdure.cli.texts import ago, to_json
from perdure.cli.verbs import group, verb

Id = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]


def add_to(app: typer.Typer) -> None:
    tasks = group(app, "tasks", "What workflows ask people and other programs for.")
    _add_list(tasks)
    _add_show(tasks)
    _add_answer(tasks)


def _add_list(tasks: typer.Typer) -> None:
    @verb(tasks, "list")
    async def list_tasks(
        desk: Desk,
        queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.")] = None,
        kind: Annotated[str | None, typer.Option("--kind", help="Only of this kind: human or remote.")] = None,
        status: Annotated[
            str, typer.Option("--status", help="open, claimed, answered, withdrawn, or any of them: all.")
        ] = "open",
        run: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only of this run.")] = None,
        after: Annotated[str | None, typer.Option("--after", metavar="ID", help="Go on after this one.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")] = 100,
    ) -> None:
        """List tasks, the oldest first: the open ones, unless told otherwise."""
        wanted = cast(Any, None if status == "all" else status)
        async with desk.client() as client:
            found = await client.tasks.list(queue=queue, kind=kind, status=wanted, run=run, after=after, limit=limit)
        if desk.as_json:
            desk.document({"tasks": found})
            return
        rows = [
            (
                one.id,
                one.queue,
                one.status,
                ago(one.created_at) if desk.is_terminal else one.created_at,
                (ago(one.due_at) if desk.is_terminal else one.due_at) if one.due_at else "",
                one.run_id,
                one.title,
            )
            for one in found
        ]
        columns = ("id", "queue", "status", "created", "due", "run", "title")
        desk.table(columns, rows, empty="no task is like that")


def _add_show(tasks: typer.Typer) -> None:
    @verb(tasks, "show")
    async def show(desk: Desk, id: Id) -> None:
        """Show a task: what it asks for, and the schema of its answer."""
        async with desk.client() as client:
            task = await client.tasks.get(id)
        if desk.as_json:
            desk.document({"task": task})
            return
        for name in ("id", "title", "queue", "kind", "status", "run_id", "worker", "claims", "error"):
            desk.fields([(name, getattr(task, name))])
        desk.fields(
            [
                ("created", task.created_at),
                ("due", task.due_at),
                ("closed", task.closed_at),
                ("answered by", task.answered_by),
                ("payload", to_json(task.payload)),
                ("details", None if task.details is None else to_json(task.details)),
                ("schema", to_json(task.schema)),
            ]
        )


def _add_answer(tasks: typer.Typer) -> None:
    @verb(tasks, "answer")
    async def answer(
        desk: Desk,
        id: Id,
        fields: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="The answer's fields; values are JSON, or else texts."),
        ] = None,
        value: Annotated[
            str | None, typer.Option("--value", metavar="JSON", help="The whole answer instead; @FILE, or -.")
        ] = None,
    ) -> None:
        """Answer a task. One answer counts. In a terminal it asks for what its schema wants if nothing is params."""
        async with desk.client() as client:
            if fields or value is not None:
                answered = params.values(fields or (), value, "--value")
            else:
                task = await client.tasks.get(id)
                desk.fields([("title", task.title), ("payload", to_json(task.payload))])
                answered = _asked(desk, task.schema)
            await client.tasks.answer(id, answered, actor=actor())
        if desk.as_json:
            desk.document({"id": id, "result": "answered"})
        else:
            desk.line("answered", id)


def _asked(desk: Desk, schema: Any) -> Any:
    """An answer that somebody types, field by field if it is to be an object. Raises Refusal without a terminal."""
    if desk.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refusal(
            "nothing says what the answer is", "give its fields as name=value, or all of it with --value JSON"
        )
    schema = _resolved(schema, schema)
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if not fields:
        return params.json_value(desk.ask("answer (JSON): "), "the answer")
    answer: dict[str, Any] = {}
    for name, wanted in fields.items():
        is_needed = name in schema.get("required", ())
        told = _resolved(wanted, schema)
        kind = told.get("type", "JSON") if isinstance(told, dict) else "JSON"
        typed = desk.ask(f"{name} ({kind}{'' if is_needed else ', may be left empty'}): ")
        if typed == "" and not is_needed:
            continue
        answer[name] = _read(typed, kind)
    return answer


def _read(typed: str, kind: object) -> Any:
    if kind == "string":
        return typed
    if kind == "boolean" and typed.strip().lower() in ("y", "yes", "n", "no"):
        return typed.strip().lower().startswith("y")
    return params.values([f"x={typed}"], None, "")["x"]


def _resolved(part: Any, schema: Any) -> Any:
    """What a reference inside the schema leads to."""
    reference = part.get("$ref") if isinstance(part, dict) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return part
    found = schema
    for name in reference[2:].split("/"):
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return found


__all__ = ["add_to"]
