"""Which runs are meant: the options that choose some, the same for every verb that takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import params
from perdure.cli.failures import Refusal

if TYPE_CHECKING:
    from perdure.engine import AnyClient
    from perdure.views import RunView


def _statuses() -> list[str]:
    from perdure.kernel.status import Status

    return [str(status) for status in Status]


def _complete_status(incomplete: str) -> list[str]:
    return [status for status in _statuses() if status.startswith(incomplete)]


Workflow = Annotated[str | None, typer.Option("--workflow", "-w", help="Only runs of this workflow.")]
Statuses = Annotated[
    list[str] | None,
    typer.Option("--status", autocompletion=_complete_status, help="Only in this status; may be given several times."),
]
Hold = Annotated[str | None, typer.Option("--hold", help="Only held: blocked, paused or poison.")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", "-t", metavar="NAME=VALUE", help="Only with this tag; several times: all.")
]
Parent = Annotated[str | None, typer.Option("--parent", metavar="ID", help="Only children of this run.")]
Since = Annotated[str | None, typer.Option("--since", help="Only created since: 2026-01-31, or 2h for two hours ago.")]
Before = Annotated[str | None, typer.Option("--before", help="Only created before.")]

_PAGE = 500


class Choice:
    """Runs by what they are like."""

    def __init__(
        self,
        *,
        workflow: str | None = None,
        status: Sequence[str] | None = None,
        hold: str | None = None,
        tag: Sequence[str] | None = None,
        parent: str | None = None,
        since: str | None = None,
        before: str | None = None,
    ) -> None:
        """Raises Refusal for what cannot be."""
        if unknown := sorted(set(status or ()) - set(_statuses())):
            raise Refusal(f"no run is {', '.join(unknown)}", f"there are {', '.join(_statuses())}")
        if hold not in (None, "blocked", "paused", "poison"):
            raise Refusal(f"no hold is {hold!r}", "there are blocked, paused and poison")
        self.is_empty = not (workflow or status or hold or tag or parent or since or before)
        self.statuses = tuple(status or ())
        self._filter: dict[str, Any] = {
            "workflow": workflow,
            "status": self.statuses,
            "hold": hold,
            "tags": params.tags(tag or ()),
            "parent": parent,
            "created_from": _moment(since, "--since"),
            "created_before": _moment(before, "--before"),
        }

    def narrowed(self, statuses: Sequence[str]) -> None:
        """Of these statuses only, unless others were asked for."""
        if not self.statuses:
            self._filter["status"] = tuple(statuses)

    async def page(self, client: AnyClient, limit: int, cursor: str | None = None) -> tuple[list[RunView], str | None]:
        page = await client.runs.list(**self._filter, limit=limit, cursor=cursor)
        return page.runs, page.cursor

    async def all(self, client: AnyClient, runs_max: int) -> AsyncIterator[RunView]:
        """The newest first, up to a number of them."""
        cursor = None
        while runs_max > 0:
            runs, cursor = await self.page(client, min(_PAGE, runs_max), cursor)
            for run in runs:
                yield run
            runs_max -= len(runs)
            if cursor is None:
                return


def _moment(text: str | None, option: str) -> datetime | None:
    return params.moment(text, option)


__all__ = ["Before", "Choice", "Hold", "Parent", "Since", "Statuses", "Tags", "Workflow"]
