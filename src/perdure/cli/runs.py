"""`perdure runs`: look at runs, and change one of them. Several at once: changes.py; as they go on: watch.py."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import changes, watch
from perdure.cli.desk import COLOURS, Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.selection import Before, Choice, Hold, Parent, Since, Statuses, Tags, Workflow
from perdure.cli.settings import actor
from perdure.cli.texts import ago, brief, moment, span, tame, to_json
from perdure.cli.verbs import group, verb

if TYPE_CHECKING:
    from rich.tree import Tree

    from perdure.api.waits import WaitView
    from perdure.engine import AnyClient
    from perdure.views import EntryView, RunTree, RunView

Id = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]

COLUMNS = ("id", "workflow", "status", "created", "took", "remarks")


def add_to(app: typer.Typer) -> None:
    runs = group(app, "runs", "Look at runs, and change them.")
    _add_list(runs)
    _add_show(runs)
    _add_history(runs)
    _add_tree(runs)
    _add_holds(runs)
    changes.add_to(runs)
    watch.add_to(runs)


def _add_list(runs: typer.Typer) -> None:
    @verb(runs, "list")
    async def list_runs(
        desk: Desk,
        workflow: Workflow = None,
        status: Statuses = None,
        hold: Hold = None,
        tag: Tags = None,
        parent: Parent = None,
        since: Since = None,
        before: Before = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")] = 50,
        cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where the page before ended.")] = None,
    ) -> None:
        """List runs, the newest first."""
        choice = Choice(workflow=workflow, status=status, hold=hold, tag=tag, parent=parent, since=since, before=before)
        async with desk.client() as client:
            found, following = await choice.page(client, limit, cursor)
        if desk.as_json:
            desk.document({"runs": found, "cursor": following})
            return
        desk.table(COLUMNS, [row(run, people=desk.is_terminal) for run in found], empty="no run is like that")
        if following is not None:
            desk.aside(f"there are more: --cursor {following}")


def row(run: RunView, *, people: bool) -> tuple[Any, ...]:
    """A run as a line of a list. For programs times are times, for people they are a while ago."""
    took = "" if run.completed_at is None else span(run.completed_at - run.created_at)
    created = ago(run.created_at) if people else run.created_at
    name = f"{run.workflow} {run.workflow_version}".rstrip()
    return (run.id, name, run.status, created, took, remarks(run))


def remarks(run: RunView) -> str:
    """What sets a run apart from one that just goes its way."""
    found: list[str] = []
    if run.hold is not None:
        found.append(f"{run.hold.kind}: {run.hold.reason}")
    if run.stranded is not None:
        found.append(run.stranded)
    if run.attempt > 1:
        found.append(f"attempt {run.attempt}")
    return brief("; ".join(found), 100)


async def existing(client: AnyClient, id: str) -> RunView:
    """A run that must be there. Raises RunNotFound."""
    from perdure.errors import RunNotFound

    found = await client.runs.get(id)
    if found is None:
        raise RunNotFound(id)
    return found


def _add_show(runs: typer.Typer) -> None:
    @verb(runs, "show")
    async def show(desk: Desk, id: Id) -> None:
        """Show a run: what it was given, what it came to, and what it waits for."""
        async with desk.client() as client:
            run = await existing(client, id)
            waits = await client.handle(id).waits() if run.completed_at is None else []
            waits = [wait for wait in waits if wait.kind != "code"]  # It is stranded, which is said already.
            published = await client.handle(id).published()
            entry = await _failed_entry(client, run)
        if desk.as_json:
            desk.document({"run": run, "waits": waits, "published": published, "failed_entry": entry})
            return
        desk.fields(_fields(run))
        desk.fields(("waits for", waited) for waited in map(told, waits))
        desk.fields(("published", f"{name} = {to_json(value)}") for name, value in published.items())
        if entry is not None:
            desk.fields([("failed at", f"{entry.kind} {entry.name}, position {entry.position}")])
        failure = entry.failure if entry is not None else run.failure
        if failure is not None and failure.stack and desk.is_terminal:
            desk.say_lines(["", *failure.stack.splitlines()])


async def _failed_entry(client: AnyClient, run: RunView) -> EntryView | None:
    """The entry of the journal whose failure ended a run, if it was one's: it has the stack of the step itself."""
    if run.failure is None or run.failure.entry is None:
        return None
    history = await client.handle(run.id).history()
    return next((entry for entry in history.journal if entry.seq == run.failure.entry and entry.failure), None)


def _fields(run: RunView) -> Iterator[tuple[str, Any]]:
    yield "id", run.id
    yield "workflow", f"{run.workflow} {run.workflow_version}".rstrip()
    yield "model", run.model
    yield "topic", run.topic or None
    yield "status", run.status
    if run.hold is not None:
        yield "held", f"{run.hold.kind}: {run.hold.reason}"
    yield "stranded", run.stranded
    yield "parent", run.parent_id
    yield "owner", run.owner
    yield "tags", dict(run.tags)
    yield "attempt", run.attempt if run.attempt > 1 else None
    yield "created", run.created_at
    yield "deadline", run.deadline
    yield "ended", run.completed_at
    yield "input", to_json(run.input)
    if run.status == "succeeded":
        yield "output", to_json(run.output)
    if run.failure is not None:
        yield "failure", f"{run.failure.type.partition(':')[2]}: {run.failure.text}"


def told(wait: WaitView) -> str:
    """What is waited for, in words."""
    due = f" due {moment(wait.due_at)} ({ago(wait.due_at)})" if wait.due_at is not None else ""
    match wait.kind:
        case "event":
            where = f" where {to_json(wait.where)}" if wait.where else ""
            return f"event {wait.name}{where}"
        case "run":
            return f"the end of run {wait.target}"
        case "retry":
            return f"attempt {wait.attempts + 1} of step {wait.name}{due}"
        case "beat":
            return f"step {wait.name}, which runs"
        case _:
            return f"{wait.kind}{due}"


def _add_history(runs: typer.Typer) -> None:
    @verb(runs, "history")
    async def history(
        desk: Desk,
        id: Id,
        audit: Annotated[bool, typer.Option("--audit", help="How its status changed, and who did it.")] = False,
    ) -> None:
        """Show what a run did: its journal, or (--audit) the changes of its status."""
        async with desk.client() as client:
            found = await client.handle(id).history()
        if desk.as_json:
            desk.document(found)
        elif audit:
            fields = ("version", "at", "was", "became", "cause", "actor", "details")
            changes = [[getattr(one, field) for field in fields] for one in found.audit]
            desk.table(fields, changes, empty="nothing changed")
        else:
            width = 60 if desk.is_terminal else 10_000
            rows = [
                (
                    one.seq,
                    one.position,
                    one.kind,
                    one.name,
                    one.at,
                    span(one.at - one.started_at),
                    one.attempts,
                    brief(one.value if one.failure is None else f"failed: {one.failure.text}", width),
                )
                for one in found.journal
            ]
            columns = ("seq", "position", "kind", "name", "at", "took", "attempts", "value")
            desk.table(columns, rows, empty="it has done nothing so far")


def _add_tree(runs: typer.Typer) -> None:
    @verb(runs, "tree")
    async def tree(desk: Desk, id: Id) -> None:
        """Show a run and all runs below it."""
        async with desk.client() as client:
            found = await client.handle(id).tree()
        if desk.as_json:
            desk.document(found)
        elif desk.is_terminal:
            desk.console.print(_drawn(found))
        else:
            for depth, run in _flat(found):
                desk.line(f"{'  ' * depth}{run.id}", run.workflow, run.status)


def _drawn(tree: RunTree) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    def label(run: RunView) -> Text:
        text = Text(tame(run.id))
        text.append(f"  {tame(run.workflow)}", style="dim")
        text.append(f"  {run.status}", style=COLOURS.get(run.status, ""))
        return text

    root = Tree(label(tree.run), guide_style="dim")
    todo = [(root, tree)]
    while todo:
        branch, part = todo.pop()
        todo += [(branch.add(label(child.run)), child) for child in part.children]
    return root


def _flat(tree: RunTree) -> Iterator[tuple[int, RunView]]:
    todo = [(0, tree)]
    while todo:
        depth, part = todo.pop()
        yield depth, part.run
        todo += [(depth + 1, child) for child in reversed(part.children)]


def _add_holds(runs: typer.Typer) -> None:
    @verb(runs, "pause")
    async def pause(
        desk: Desk, id: Id, reason: Annotated[str, typer.Option("--reason", help="Why, for the audit trail.")] = ""
    ) -> None:
        """Set a run aside until it is resumed. Steps that run are cancelled, and run again then."""
        async with desk.client() as client:
            await existing(client, id)
            done = await client.handle(id).pause(reason=reason, actor=actor())
        _tell(desk, id, "paused", done, f"run {id!r} is held already, or has ended")

    @verb(runs, "resume")
    async def resume(desk: Desk, id: Id) -> None:
        """Lift a run's hold, whatever its kind, and let it go on."""
        async with desk.client() as client:
            done = await client.handle(id).resume(actor=actor())
        _tell(desk, id, "resumed", done, f"run {id!r} is not held")


def _tell(desk: Desk, id: str, what: str, done: bool, otherwise: str) -> None:
    if not done:
        raise Refusal(otherwise, f"look at it: perdure runs show {quote(id)}", code=Code.CONFLICT, kind="conflict")
    if desk.as_json:
        desk.document({"id": id, "result": what, "at": datetime.now(UTC)})
    else:
        desk.say(f"{what} {id}")


__all__ = ["COLUMNS", "add_to", "existing", "remarks", "row", "told"]
