"""`perdure runs cancel`, `pause`, `resume` and `retry`, for given runs or for all runs that options select. Also `runs
update`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

from perdure.cli import bulk_changes, params
from perdure.cli.bulk_changes import AtMost, DryRun, Everything, Yes
from perdure.cli.commands import command
from perdure.cli.errors import Code, Refusal
from perdure.cli.params import Id
from perdure.cli.run_lines import existing
from perdure.cli.run_selection import Before, Hold, Parent, Selection, Since, Statuses, Tags, Workflow
from perdure.cli.settings import actor
from perdure.cli.terminal import Terminal

if TYPE_CHECKING:
    from perdure.engine import AnyClient
    from perdure.views import RunView

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids of runs.")]
Reason = Annotated[str, typer.Option("--reason", help="Why. The audit trail keeps it.")]
_COLUMNS = ("id", "workflow", "status")


class Change(Struct, frozen=True, kw_only=True):
    """A change that can be made to many runs, and the words for it."""

    verb: str
    progress: str
    act: Callable[[AnyClient, str], Awaitable[str]]
    statuses: Sequence[str]  # the statuses of the runs to which it applies, unless options select statuses
    held: bool | None = None  # True: only held runs; False: only runs that are not held


class Request(Struct, frozen=True, kw_only=True):
    """The runs that the command line asks to change."""

    ids: Sequence[str]
    selection: Selection
    everything: bool
    yes: bool
    at_most: int
    dry_run: bool


def add_to(runs: typer.Typer) -> None:
    _add_cancel(runs)
    _add_pause(runs)
    _add_resume(runs)
    _add_retry(runs)
    _add_update(runs)


def _add_cancel(runs: typer.Typer) -> None:
    @command(runs, "cancel")
    async def cancel(
        terminal: Terminal,
        ids: Ids = None,
        workflow: Workflow = None,
        status: Statuses = None,
        hold: Hold = None,
        tag: Tags = None,
        parent: Parent = None,
        since: Since = None,
        before: Before = None,
        everything: Everything = False,
        reason: Reason = "",
        yes: Yes = False,
        at_most: AtMost = 10_000,
        dry_run: DryRun = False,
    ) -> int:
        """Cancel runs.

        Give ids, or select runs with options. If you select them with options, the command asks before it cancels them.
        A run that has ended stays as it is."""
        selection = Selection(
            workflow=workflow, status=status, hold=hold, tag=tag, parent=parent, since=since, before=before
        )

        async def act(client: AnyClient, id: str) -> str:
            if await client.handle(id).cancel(reason=reason, actor=actor()):
                return "cancelled"
            found = await existing(client, id)
            raise _conflict(f"run {id!r} has ended: it is {found.status}", id, "run_finished")

        change = Change(verb="cancel", progress="cancelling", act=act, statuses=_active())
        return await _apply(terminal, change, _request(ids, selection, everything, yes, at_most, dry_run))


def _add_pause(runs: typer.Typer) -> None:
    @command(runs, "pause")
    async def pause(
        terminal: Terminal,
        ids: Ids = None,
        workflow: Workflow = None,
        status: Statuses = None,
        tag: Tags = None,
        parent: Parent = None,
        since: Since = None,
        before: Before = None,
        everything: Everything = False,
        reason: Reason = "",
        yes: Yes = False,
        at_most: AtMost = 10_000,
        dry_run: DryRun = False,
    ) -> int:
        """Hold runs until you resume them.

        Give ids, or select runs with options. If you select them with options, the command asks before it holds them.
        Steps that are running are cancelled. They run again after you resume the run."""
        selection = Selection(workflow=workflow, status=status, tag=tag, parent=parent, since=since, before=before)

        async def act(client: AnyClient, id: str) -> str:
            if await client.handle(id).pause(reason=reason, actor=actor()):
                return "paused"
            raise _conflict(f"run {id!r} is held already", id)

        change = Change(verb="pause", progress="pausing", act=act, statuses=_active(), held=False)
        return await _apply(terminal, change, _request(ids, selection, everything, yes, at_most, dry_run))


def _add_resume(runs: typer.Typer) -> None:
    @command(runs, "resume")
    async def resume(
        terminal: Terminal,
        ids: Ids = None,
        workflow: Workflow = None,
        status: Statuses = None,
        hold: Hold = None,
        tag: Tags = None,
        parent: Parent = None,
        since: Since = None,
        before: Before = None,
        everything: Everything = False,
        yes: Yes = False,
        at_most: AtMost = 10_000,
        dry_run: DryRun = False,
    ) -> int:
        """Lift the holds of runs, of any kind.

        Give ids, or select held runs with options. If you select them with options, the command asks before it resumes
        them."""
        selection = Selection(
            workflow=workflow, status=status, hold=hold, tag=tag, parent=parent, since=since, before=before
        )

        async def act(client: AnyClient, id: str) -> str:
            if await client.handle(id).resume(actor=actor()):
                return "resumed"
            raise _conflict(f"run {id!r} is not held", id)

        change = Change(verb="resume", progress="resuming", act=act, statuses=_active(), held=True)
        return await _apply(terminal, change, _request(ids, selection, everything, yes, at_most, dry_run))


def _add_retry(runs: typer.Typer) -> None:
    @command(runs, "retry")
    async def retry(
        terminal: Terminal,
        ids: Ids = None,
        workflow: Workflow = None,
        tag: Tags = None,
        parent: Parent = None,
        since: Since = None,
        before: Before = None,
        everything: Everything = False,
        yes: Yes = False,
        at_most: AtMost = 10_000,
        dry_run: DryRun = False,
    ) -> int:
        """Run failed runs again, from the step that failed.

        Give ids, or select failed runs with options. If you select them with options, the command asks before it
        retries them."""
        selection = Selection(workflow=workflow, tag=tag, parent=parent, since=since, before=before)

        async def act(client: AnyClient, id: str) -> str:
            await client.handle(id).retry(actor=actor())
            return "retried"

        change = Change(verb="retry", progress="retrying", act=act, statuses=["failed"])
        return await _apply(terminal, change, _request(ids, selection, everything, yes, at_most, dry_run))


def _add_update(runs: typer.Typer) -> None:
    @command(runs, "update")
    async def update(
        terminal: Terminal,
        id: Id,
        tag: Annotated[
            list[str] | None,
            typer.Option(
                "--tag", "-t", metavar="NAME=VALUE", help="A tag. All tags of the run are replaced. Repeatable."
            ),
        ] = None,
        no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove all tags.")] = False,
        deadline: Annotated[
            str | None, typer.Option("--deadline", help="The time by which the run must end: 2h, or a time.")
        ] = None,
        no_deadline: Annotated[bool, typer.Option("--no-deadline", help="Remove the deadline.")] = False,
    ) -> None:
        """Replace a run's tags, its deadline, or both."""
        if (tag and no_tags) or (deadline is not None and no_deadline):
            raise Refusal("one option sets a value, and another one removes it", "use one of them")
        if not (tag or no_tags or deadline is not None or no_deadline):
            raise Refusal("no option says what to change", "use --tag, --no-tags, --deadline or --no-deadline")
        changes: dict[str, Any] = {}
        if tag or no_tags:
            changes["tags"] = params.tags(tag or ())
        if deadline is not None or no_deadline:
            changes["deadline"] = params.deadline(deadline)
        async with terminal.client() as client:
            view = await client.handle(id).update(**changes, actor=actor())
        if terminal.as_json:
            terminal.document({"run": view})
        else:
            terminal.print_text(f"updated {id}")


def _active() -> list[str]:
    from perdure.kernel.status import ACTIVE

    return sorted(ACTIVE)


def _conflict(what: str, id: str, kind: str = "conflict") -> Refusal:
    return Refusal(what, f"look at the run: perdure runs show {quote(id)}", code=Code.CONFLICT, kind=kind)


def _request(
    ids: list[str] | None, selection: Selection, everything: bool, yes: bool, at_most: int, dry_run: bool
) -> Request:
    return Request(
        ids=list(dict.fromkeys(ids or ())),
        selection=selection,
        everything=everything,
        yes=yes,
        at_most=at_most,
        dry_run=dry_run,
    )


async def _apply(terminal: Terminal, change: Change, request: Request) -> int:
    """Change the requested runs, and return the exit code. Raises Refusal."""
    request.selection.default_to(change.statuses)
    async with terminal.client() as client:
        if request.dry_run:
            return _show_dry_run(terminal, await _found(client, change, request))
        ids = request.ids
        if not ids or not request.selection.is_empty or request.everything:
            ids = await _confirmed(terminal, client, change, request)

        async def act(id: str) -> str:
            return await change.act(client, id)

        return await bulk_changes.each(terminal, change.progress, ids, act)


async def _confirmed(terminal: Terminal, client: AnyClient, change: Change, request: Request) -> list[str]:
    """Return the ids of the runs that options select, after the user has confirmed the change. Raises Refusal."""
    found = await _found(client, change, request)
    if not found:
        terminal.note(f"there is no run to {change.verb}")
        return []
    rows = [(run.id, run.workflow, run.status) for run in found]
    count = f"{len(found)} runs" if len(found) > 1 else "1 run"
    bulk_changes.announce(terminal, f"{change.verb} {count}", _COLUMNS, rows, yes=request.yes)
    return [run.id for run in found]


async def _found(client: AnyClient, change: Change, request: Request) -> list[RunView]:
    """Return the runs with the given ids, or the runs that options select and to which the change can apply. Raises
    Refusal.
    """
    selection = request.selection
    if request.ids:
        if request.everything or not selection.is_empty:
            raise Refusal("there are both ids and options that select runs", "use one of them")
        views = await client.runs.get_many(request.ids)
        return [views[id] for id in request.ids if id in views]
    if selection.is_empty and not request.everything:
        raise Refusal(
            f"nothing says which runs to {change.verb}",
            f"name runs (perdure runs {change.verb} ID), select some (--workflow, --tag, …), or use --all",
        )
    found: list[RunView] = []
    async for run in selection.all(client):
        if change.held in (None, run.hold is not None):
            found.append(run)
        if len(found) > request.at_most:
            raise bulk_changes.too_many(request.at_most)
    return found


def _show_dry_run(terminal: Terminal, found: Sequence[RunView]) -> int:
    if terminal.as_json:
        terminal.document({"dry_run": True, "ids": [run.id for run in found]})
    else:
        terminal.table(_COLUMNS, [(run.id, run.workflow, run.status) for run in found], empty="no run matches")
    return Code.DONE


__all__ = ["add_to"]
