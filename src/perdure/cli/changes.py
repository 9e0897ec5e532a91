"""`perdure runs cancel` and `retry`: of one run, or of all that are like something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import bulk
from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.selection import Before, Choice, Hold, Parent, Since, Statuses, Tags, Workflow
from perdure.cli.settings import actor
from perdure.cli.verbs import verb

if TYPE_CHECKING:
    from perdure.engine import AnyClient

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The runs' ids.")]
Everything = Annotated[bool, typer.Option("--all", help="All that can be, if nothing else chooses.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AtMost = Annotated[int, typer.Option("--at-most", min=1, help="Refuse to do it to more than so many.")]

Act = Callable[[str], Awaitable[str]]


def add_to(runs: typer.Typer) -> None:
    _add_cancel(runs)
    _add_retry(runs)


def _add_cancel(runs: typer.Typer) -> None:
    @verb(runs, "cancel")
    async def cancel(
        desk: Desk,
        ids: Ids = None,
        workflow: Workflow = None,
        status: Statuses = None,
        hold: Hold = None,
        tag: Tags = None,
        parent: Parent = None,
        since: Since = None,
        before: Before = None,
        everything: Everything = False,
        reason: Annotated[str, typer.Option("--reason", help="Why, for the audit trail.")] = "",
        yes: Yes = False,
        at_most: AtMost = 10_000,
    ) -> int:
        """Cancel runs: by id, or all that are like something, after asking. Those that have ended stay as they are."""
        from perdure.kernel.status import ACTIVE

        choice = Choice(workflow=workflow, status=status, hold=hold, tag=tag, parent=parent, since=since, before=before)
        choice.narrowed(sorted(ACTIVE))
        async with desk.client() as client:

            async def act(id: str) -> str:
                if await client.handle(id).cancel(reason=reason, actor=actor()):
                    return "cancelled"
                raise await _not_cancelled(client, id)

            chosen = await _chosen(desk, client, ids or (), choice, everything, "cancel", yes, at_most)
            return await bulk.each(desk, "cancelling", chosen, act)


async def _not_cancelled(client: AnyClient, id: str) -> Exception:
    from perdure.errors import RunNotFound

    found = await client.runs.get(id)
    if found is None:
        return RunNotFound(id)
    return Refusal(f"run {id!r} is {found.status}: it has ended already", code=Code.CONFLICT, kind="run_finished")


def _add_retry(runs: typer.Typer) -> None:
    @verb(runs, "retry")
    async def retry(
        desk: Desk,
        ids: Ids = None,
        workflow: Workflow = None,
        tag: Tags = None,
        parent: Parent = None,
        since: Since = None,
        before: Before = None,
        everything: Everything = False,
        yes: Yes = False,
        at_most: AtMost = 10_000,
    ) -> int:
        """Run failed runs again, from what failed: by id, or all that are like something, after asking."""
        choice = Choice(workflow=workflow, tag=tag, parent=parent, since=since, before=before)
        choice.narrowed(["failed"])
        async with desk.client() as client:

            async def act(id: str) -> str:
                await client.handle(id).retry(actor=actor())
                return "retried"

            chosen = await _chosen(desk, client, ids or (), choice, everything, "retry", yes, at_most)
            return await bulk.each(desk, "retrying", chosen, act)


async def _chosen(
    desk: Desk,
    client: AnyClient,
    ids: Sequence[str],
    choice: Choice,
    everything: bool,
    what: str,
    yes: bool,
    at_most: int,
) -> Sequence[str]:
    """The ids that were given, or those of all runs that were described. Raises Refusal."""
    if ids:
        if everything or not choice.is_empty:
            raise Refusal("there are both ids and options that choose runs", "use one of them")
        return list(dict.fromkeys(ids))
    if choice.is_empty and not everything:
        raise Refusal(
            f"nothing says which runs to {what}",
            f"name some (perdure runs {what} ID), choose some (--workflow, --tag, …), or say --all",
        )
    found = [run async for run in choice.all(client, at_most + 1)]
    if len(found) > at_most:
        raise Refusal(f"there are more than {at_most} of them", "choose fewer, or allow more with --at-most")
    if not found:
        desk.aside(f"there is no run to {what}")
        return []
    rows = [(run.id, run.workflow, run.status) for run in found]
    count = f"{len(found)} runs" if len(found) > 1 else "1 run"
    bulk.announce(desk, f"{what} {count}", ("id", "workflow", "status"), rows, yes=yes)
    return [run.id for run in found]


__all__ = ["AtMost", "Everything", "Yes", "add_to"]
