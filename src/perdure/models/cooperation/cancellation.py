"""Cancelling by token: which runs were given a cancelled token, and what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from perdure.coordinator.turns import in_turns
from perdure.kernel import ops
from perdure.kernel.cooperation import depth_of
from perdure.kernel.rules.operations import ASK
from perdure.kernel.status import Status
from perdure.models.cooperation.context import CancellationToken
from perdure.models.cooperation.drafter import GIVEN, Drafting
from perdure.models.cooperation.events import State
from perdure.models.cooperation.failures import Failure, gave_up
from perdure.models.cooperation.live import News
from perdure.models.cooperation.moves import Ask, OperationRun
from perdure.models.cooperation.rows import RowCodec, outcome_failure
from perdure.models.cooperation.tokens import read_scopes
from perdure.ports import RunFilter, Store

_FORWARD: Final = (Status.CREATED, Status.RUNNING, Status.SUSPENDED)
_PAGE: Final = 200  # runs that are told in one commit


def asking(
    drafting: Drafting, view: OperationRun, status: str, failure: Failure, depth: int, now: int, actor: str
) -> ops.Tell:
    """Have a run give up for a `failure`, which was asked of a lineage of this depth; if nobody has taken the run, it
    never begins."""
    run_id = view.lineage[-1]
    about = drafting.write_ask(Ask(kind="cancel", depth=depth, failure=failure))
    failure = gave_up((failure,), view.source)
    if status != Status.CREATED:
        call_failure = outcome_failure(failure)
        return ops.Tell(run_id=run_id, at=now, actor=actor, kind=ASK, about=about, call_failure=call_failure)
    return ops.Tell(
        run_id=run_id,
        at=now,
        actor=actor,
        kind=ASK,
        about=about,
        refusal=drafting.refused(replace(view, told=None), failure, now),
        failure=outcome_failure(failure),
        answer=drafting.write_news(News(run_id, State.ROLLED_BACK, failure)),
        parent_id=view.lineage[-2],
    )


class TokenMembers:
    """Finds runs whose tokens are cancelled. A run that inherits a token from the run that emitted its message is told
    by that one, so only those are looked for that were given a token with their message: they have a tag."""

    def __init__(self, store: Store, rows: RowCodec, drafting: Drafting) -> None:
        self._store = store
        self._rows = rows
        self._drafting = drafting

    async def found(self, op: ops.TellMembers, now: int) -> ops.TellMembers:
        """The op, with what the next page of runs is to be told, if the token is cancelled. Raises StoreError."""
        if not await self._store.events_at([(op.run_id, 0)]):
            return op
        wanted = RunFilter(
            tags={CancellationToken(op.token).tag: GIVEN}, statuses=_FORWARD, after=op.after, limit=_PAGE
        )
        page = await self._store.list(wanted)
        tells = await self.told([run.id for run in page], now, op.actor)
        rest = (page[-1].created_at, page[-1].id) if len(page) == _PAGE else None
        return replace(op, at=now, tells=tells, rest=rest)

    async def ids(self, token: CancellationToken) -> list[str]:
        """All runs that were given a token, and have not ended. Raises StoreError."""
        wanted = RunFilter(tags={token.tag: GIVEN}, statuses=_FORWARD, limit=_PAGE)
        ids: list[str] = []
        while page := await self._store.list(wanted):
            ids += [run.id for run in page]
            wanted = replace(wanted, after=(page[-1].created_at, page[-1].id))
        return ids

    async def told(self, run_ids: Sequence[str], now: int, actor: str) -> tuple[ops.Tell, ...]:
        """What those of these runs are to be told that have a cancelled token. Raises StoreError."""
        if not run_ids:
            return ()
        scopes = await read_scopes(self._store, self._rows, run_ids)
        hierarchy = await in_turns(scopes.hierarchy_in_pieces())
        tells: list[ops.Tell] = []
        for run_id in run_ids:
            run = scopes.runs.get(run_id)
            if run is None or scopes.statuses[run_id] not in _FORWARD:
                continue
            cancelled = next(iter(hierarchy.cancelled_tokens(run)), None)
            if cancelled is not None:
                view = await in_turns(hierarchy.view_in_pieces(run, now))
                depth = depth_of(run.lineage)
                tells.append(
                    asking(self._drafting, view, scopes.statuses[run_id], cancelled.failure, depth, now, actor)
                )
        return tuple(tells)


__all__ = ["TokenMembers", "asking"]
