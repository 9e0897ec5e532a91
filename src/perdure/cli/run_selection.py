"""The options that select runs. All commands that select runs have the same options."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import params
from perdure.cli.errors import Refusal

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
    typer.Option(
        "--status",
        autocompletion=_complete_status,
        help="Only runs in this status. Repeat the option to select several statuses.",
    ),
]
Hold = Annotated[str | None, typer.Option("--hold", help="Only runs with this hold: blocked, paused, poison.")]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        "-t",
        metavar="NAME=VALUE",
        help="Only runs with this tag. If you repeat the option, only runs with all these tags.",
    ),
]
Parent = Annotated[str | None, typer.Option("--parent", metavar="ID", help="Only children of this run.")]
Since = Annotated[
    str | None, typer.Option("--since", help="Only runs created since this time: 2026-01-31, or 2h for two hours ago.")
]
Before = Annotated[
    str | None,
    typer.Option("--before", help="Only runs created before this time: 2026-01-31, or 2h for two hours ago."),
]

_PAGE = 500


class Selection:
    """The runs that options select. Without options, all runs are selected."""

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
        """Raises Refusal if a status or a hold does not exist, or if a tag or a time cannot be read."""
        if unknown := sorted(set(status or ()) - set(_statuses())):
            raise Refusal(f"there is no status {', '.join(unknown)}", f"use one of {', '.join(_statuses())}")
        if hold not in (None, "blocked", "paused", "poison"):
            raise Refusal(f"there is no hold {hold!r}", "use blocked, paused or poison")
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

    def default_to(self, statuses: Sequence[str]) -> None:
        """Select only runs in these statuses, unless options name statuses."""
        if not self.statuses:
            self._filter["status"] = tuple(statuses)

    async def count(self, client: AnyClient, limit: int) -> int:
        """Return how many runs are selected. Counting stops at `limit`."""
        from perdure.api.runs import RunSelection

        return await client.runs.count(RunSelection(**self._filter), limit=limit)

    async def page(self, client: AnyClient, limit: int, cursor: str | None = None) -> tuple[list[RunView], str | None]:
        """Return a page of runs, newest first, and the cursor of the next page."""
        page = await client.runs.list(**self._filter, limit=limit, cursor=cursor)
        return page.runs, page.cursor

    async def all(self, client: AnyClient) -> AsyncIterator[RunView]:
        """Yield all selected runs, newest first."""
        cursor = None
        while True:
            runs, cursor = await self.page(client, _PAGE, cursor)
            for run in runs:
                yield run
            if cursor is None:
                return


def _moment(text: str | None, option: str) -> datetime | None:
    return params.moment(text, option)


__all__ = ["Before", "Hold", "Parent", "Selection", "Since", "Statuses", "Tags", "Workflow"]
