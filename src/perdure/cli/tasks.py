"""`perdure tasks`: work that runs give to people or other programs and wait for."""

from __future__ import annotations

import sys
from typing import Annotated, Any, cast

import typer

from perdure.cli import params
from perdure.cli.commands import command, group
from perdure.cli.errors import Refusal
from perdure.cli.formats import ago, to_json
from perdure.cli.settings import actor
from perdure.cli.terminal import Terminal

Id = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]
Worker = Annotated[str, typer.Option("--worker", help="The name of the worker that has the task.")]


def add_to(app: typer.Typer) -> None:
    tasks = group(app, "tasks", "Work that runs wait for people or programs to do.")
    _add_list(tasks)
    _add_show(tasks)
    _add_answer(tasks)
    _add_claim(tasks)
    _add_heartbeat(tasks)
    _add_release(tasks)
    _add_fail(tasks)


def _add_list(tasks: typer.Typer) -> None:
    @command(tasks, "list")
    async def list_tasks(
        terminal: Terminal,
        queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only tasks of this queue.")] = None,
        kind: Annotated[str | None, typer.Option("--kind", help="Only tasks of this kind: human or remote.")] = None,
        status: Annotated[str, typer.Option("--status", help="open, claimed, answered, withdrawn, or all.")] = "open",
        run: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only tasks of this run.")] = None,
        after: Annotated[str | None, typer.Option("--after", metavar="ID", help="List those after this one.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="List at most this many.")] = 100,
    ) -> None:
        """List tasks, oldest first. By default, only open tasks are listed."""
        wanted = cast(Any, None if status == "all" else status)
        async with terminal.client() as client:
            found = await client.tasks.list(queue=queue, kind=kind, status=wanted, run=run, after=after, limit=limit)
        if terminal.as_json:
            terminal.document({"tasks": found})
            return
        rows = [
            (
                one.id,
                one.queue,
                one.status,
                ago(one.created_at) if terminal.is_tty else one.created_at,
                (ago(one.due_at) if terminal.is_tty else one.due_at) if one.due_at else "",
                one.run_id,
                one.title,
            )
            for one in found
        ]
        columns = ("id", "queue", "status", "created", "due", "run", "title")
        terminal.table(columns, rows, empty="no task matches")


def _add_show(tasks: typer.Typer) -> None:
    @command(tasks, "show")
    async def show(terminal: Terminal, id: Id) -> None:
        """Show a task, with the schema of its answer."""
        async with terminal.client() as client:
            task = await client.tasks.get(id)
        if terminal.as_json:
            terminal.document({"task": task})
            return
        for name in ("id", "title", "queue", "kind", "status", "run_id", "worker", "claims", "error"):
            terminal.fields([(name, getattr(task, name))])
        terminal.fields(
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
    @command(tasks, "answer")
    async def answer(
        terminal: Terminal,
        id: Id,
        fields: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="Fields of the answer. A value that is not JSON is text."),
        ] = None,
        value: Annotated[
            str | None,
            typer.Option("--value", metavar="JSON", help="The whole answer: JSON, @FILE, or - for stdin."),
        ] = None,
        worker: Annotated[
            str | None, typer.Option("--worker", help="The worker that has claimed the task, if one has.")
        ] = None,
    ) -> None:
        """Answer a task. Only the first answer counts.

        If you give no answer in the arguments, and this is a terminal, the command asks for each field of the
        schema."""
        async with terminal.client() as client:
            if fields or value is not None:
                answered = params.values(fields or (), value, "--value")
            else:
                task = await client.tasks.get(id)
                terminal.fields([("title", task.title), ("payload", to_json(task.payload))])
                answered = _asked(terminal, task.schema)
            await client.tasks.answer(id, answered, actor=actor(), worker=worker)
        _show_result(terminal, "answered", id)


def _add_claim(tasks: typer.Typer) -> None:
    @command(tasks, "claim")
    async def claim(
        terminal: Terminal,
        queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue to take tasks from.")],
        worker: Worker,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="Take at most this many.")] = 1,
        lease: Annotated[str, typer.Option("--lease", help="How long they are kept for the worker: 60s, 5m.")] = "60s",
    ) -> None:
        """Claim open tasks of a queue for a worker, oldest first.

        No other worker gets the tasks until the lease has expired; `heartbeat` renews the lease."""
        span = params.length(lease, "--lease")
        async with terminal.client() as client:
            found = await client.tasks.claim(queue, worker, limit=limit, lease=span, actor=actor())
        if terminal.as_json:
            terminal.document({"tasks": found})
            return
        rows = [(one.id, one.run_id, one.title, to_json(one.payload)) for one in found]
        terminal.table(("id", "run", "title", "payload"), rows, empty=f"no task of {queue} is open")


def _add_heartbeat(tasks: typer.Typer) -> None:
    @command(tasks, "heartbeat")
    async def heartbeat(
        terminal: Terminal,
        id: Id,
        worker: Worker,
        details: Annotated[
            str | None, typer.Option("--details", metavar="JSON", help="How far it got, for the next worker.")
        ] = None,
    ) -> None:
        """Report that the worker is alive, and renew its lease of a task."""
        value = None if details is None else params.json_value(details, "--details")
        async with terminal.client() as client:
            await client.tasks.heartbeat(id, worker, value, actor=actor())
        _show_result(terminal, "renewed", id)


def _add_release(tasks: typer.Typer) -> None:
    @command(tasks, "release")
    async def release(terminal: Terminal, id: Id, worker: Worker) -> None:
        """Give a claimed task back: it is open again at once."""
        async with terminal.client() as client:
            await client.tasks.release(id, worker, actor=actor())
        _show_result(terminal, "released", id)


def _add_fail(tasks: typer.Typer) -> None:
    @command(tasks, "fail")
    async def fail(
        terminal: Terminal,
        id: Id,
        error: Annotated[str, typer.Argument(metavar="ERROR", help="Why the worker could not do it.")],
        worker: Worker,
        retry: Annotated[bool, typer.Option("--retry", help="Open the task again, for another worker.")] = False,
    ) -> None:
        """Report that the worker could not do a task.

        The run gets TaskFailed. With --retry, the task is open again instead."""
        async with terminal.client() as client:
            await client.tasks.fail(id, worker, error, retry=retry, actor=actor())
        _show_result(terminal, "opened again" if retry else "failed", id)


def _show_result(terminal: Terminal, result: str, id: str) -> None:
    if terminal.as_json:
        terminal.document({"id": id, "result": result})
    else:
        terminal.line(result, id)


def _asked(terminal: Terminal, schema: Any) -> Any:
    """Ask the user for the answer. If the answer is an object, ask for each field. Raises Refusal if there is no
    terminal.
    """
    if terminal.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refusal(
            "there is no answer in the arguments", "give its fields as name=value, or all of it with --value JSON"
        )
    schema = _resolved(schema, schema)
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if not fields:
        return params.json_value(terminal.ask("answer (JSON): "), "the answer")
    answer: dict[str, Any] = {}
    for name, wanted in fields.items():
        is_needed = name in schema.get("required", ())
        part = _resolved(wanted, schema)
        kind = part.get("type", "JSON") if isinstance(part, dict) else "JSON"
        typed = terminal.ask(f"{name} ({kind}{'' if is_needed else ', may be left empty'}): ")
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
    """Return a part of a schema, or the part that it refers to."""
    reference = part.get("$ref") if isinstance(part, dict) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return part
    found = schema
    for name in reference[2:].split("/"):
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return found


__all__ = ["add_to"]
