"""Runs of graphs: their tokens, events, definitions and pictures.

The store keeps the definition that each run was started or last retried with. So a run is shown with its own
definition, even if the code has changed or this process does not have the code. A run without a stored definition is
shown with the definition in the code.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from perdure.errors import Misuse, RunNotFound
from perdure.kernel.rows import Entry
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED
from perdure.models.graphs.event_pages import key_of, page_of
from perdure.registry import named
from perdure.session import Session
from perdure.values.checks import checked_text

if TYPE_CHECKING:
    from perdure.models.graphs.define import Graph
    from perdure.models.graphs.stored_definitions import DefinitionView, StoredDefinition
    from perdure.models.graphs.token_views import GraphEvents, TokensView
    from perdure.models.graphs.trace import Trace

Journal = tuple[str, list[Entry]]  # a run's input and its journal entries
_EVENTS_MAX: Final = 10_000


async def tokens_of(session: Session, run_id: str, graph: Graph[Any, Any] | None) -> TokensView:
    """Return the tokens of a run, including tokens that have ended. Raises RunNotFound, Misuse."""
    return (await _trace(session, run_id, graph)).tokens()


async def graph_events_of(
    session: Session, run_id: str, after: int, limit: int, graph: Graph[Any, Any] | None
) -> GraphEvents:
    """Return the events of a run, derived from its journal.

    Reading all pages replays the journal once. Raises RunNotFound, Misuse.
    """
    if not 1 <= limit <= _EVENTS_MAX or after < 0:
        raise Misuse(f"limit must be between 1 and {_EVENTS_MAX:,}, and after at least 0, not {limit} and {after}")
    digest, pages = "" if graph is None else graph.digest, session.event_pages
    run = await (_stored_run(session, run_id) if graph is None else _run_of(session, run_id, graph))
    if (page := pages.page(key_of(run, digest), run, after, limit)) is not None:
        return page
    run, found, journal = await _graph_of(session, run_id, graph)
    key, entries = key_of(run, digest), len(journal[1])
    if (page := pages.page(key, run, after, limit, entries)) is not None:
        return page
    events = (await _traced(session, run, found, journal)).events()
    page = page_of(run_id, events, after, limit)
    if page.cursor is not None or run.status not in FINISHED:
        pages.keep(key, run, events, entries)
    return page


async def drawing_of(
    session: Session,
    run_id: str,
    form: Literal["svg", "mermaid"],
    graph: Graph[Any, Any] | None,
    tokens: TokensView | None,
) -> str:
    """Return a picture of a run's graph with its tokens.

    The picture is drawn in a thread, because a large picture takes a while. Raises RunNotFound, Misuse.
    """
    run, found, journal = await _graph_of(session, run_id, graph)
    if tokens is None:
        tokens = (await _traced(session, run, found, journal)).tokens()
    found.build()
    return await asyncio.to_thread(found.to_svg if form == "svg" else found.to_mermaid, tokens)


async def definition_of(session: Session, run_id: str) -> DefinitionView:
    """Return the definition that a run was started or last retried with. Raises RunNotFound, Misuse."""
    from perdure.models.graphs.stored_definitions import DefinitionView

    run, digest, _ = await _graph_run(session, run_id)
    code = _code(session, run)
    if digest is None or (code is not None and code.digest == digest):
        if code is None:
            raise _unknown(run)
        definition, digest = code.kept().definition, code.digest
    else:
        definition = (await _stored_definition(session, run, digest)).definition
    return DefinitionView(
        run_id=run_id,
        workflow=run.workflow,
        version=run.workflow_version,
        digest=digest,
        is_current=None if code is None else code.digest == digest,
        definition=definition,
    )


async def _trace(session: Session, run_id: str, graph: Graph[Any, Any] | None) -> Trace:
    """Raises RunNotFound, Misuse."""
    return await _traced(session, *await _graph_of(session, run_id, graph))


async def _traced(session: Session, run: Run, graph: Graph[Any, Any], journal: Journal) -> Trace:
    """Replay a run in bounded turns of the event loop, and return its trace. Raises Misuse if the journal does not fit
    the graph.
    """
    input, entries = journal
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Trace] = loop.create_future()
    tracing = graph.trace(run, input, entries, session.codec, session.limits.payload_bytes_max)

    def trace() -> None:  # A replay has asyncio tasks of its own, so it must not run inside another task.
        if done.cancelled():
            tracing.close()
            return
        try:
            next(tracing)
        except StopIteration as traced:
            done.set_result(traced.value)
        except Exception as error:  # noqa: BLE001 - the caller that asked for the trace raises it
            done.set_exception(error)
        else:
            loop.call_soon(trace)

    loop.call_soon(trace)
    return await done


# Finding the graph of a run.


async def _graph_run(session: Session, run_id: str) -> tuple[Run, str | None, Journal]:
    """Return a run, the digest of its definition if one is stored, and its journal. Raises RunNotFound, Misuse."""
    run = await _stored_run(session, run_id)
    journal = await session.caller_store.journal(run_id)
    digest = await _digest(session, run_id, journal)
    # If a run was started by name, its row may not have the model. Then the code or the journal says which model it is.
    if run.model != "graph" and _code(session, run) is None and digest is None:
        raise Misuse(f"run {run_id!r} has the model {run.model!r}: only runs of graphs have tokens")
    return run, digest, journal


async def _stored_run(session: Session, run_id: str) -> Run:
    session.check_open()
    stored = (await session.caller_store.get([checked_text(run_id, "a run's id")])).get(run_id)
    if stored is None:
        raise RunNotFound(run_id)
    return stored.run


async def _graph_of(
    session: Session, run_id: str, graph: Graph[Any, Any] | None
) -> tuple[Run, Graph[Any, Any], Journal]:
    """Return a run, its graph, and its journal. Raises RunNotFound, Misuse."""
    from perdure.models.graphs.define import Graph

    if graph is not None:
        run = await _run_of(session, run_id, graph)
        return run, graph, await session.caller_store.journal(run_id)
    run, digest, journal = await _graph_run(session, run_id)
    code = _code(session, run)
    if code is not None and (digest is None or code.digest == digest):
        return run, code, journal
    if digest is None:
        raise _unknown(run)
    return run, Graph.read_back(await _stored_definition(session, run, digest)), journal


async def _run_of(session: Session, run_id: str, graph: Graph[Any, Any]) -> Run:
    """Return a run, after checking that it is a run of the graph that the caller passed. Raises RunNotFound, Misuse."""
    run = await _stored_run(session, run_id)
    if (graph.name, graph.version) != (run.workflow, run.workflow_version) or graph.model != "graph":
        raise Misuse(f"run {run_id!r} is a run of {named(run.workflow, run.workflow_version)}, not of {graph!r}")
    return run


def _code(session: Session, run: Run) -> Graph[Any, Any] | None:
    found: Any = session.workflows.get((run.workflow, run.workflow_version))
    return None if found is None or found.model != "graph" else found


def _unknown(run: Run) -> Misuse:
    which = named(run.workflow, run.workflow_version)
    return Misuse(f"run {run.id!r} is of {which}, which is not known here; hand it in: tokens(graph=…)")


async def _digest(session: Session, run_id: str, journal: Journal) -> str | None:
    """Return the digest of the definition that a run was started or last retried with, or None if none is stored."""
    from perdure.models.functions.definition_outlines import read, split
    from perdure.models.graphs.stored_definitions import KEY

    for entry in split(journal[1])[0][:1]:  # The newest entry comes first.
        if digest := read(session.codec.decode(entry.value or "")).digest:
            return digest
    found = await session.caller_store.published(run_id, KEY)
    return msgspec.json.decode(session.codec.decode(found[0].value), type=str) if found else None


async def _stored_definition(session: Session, run: Run, digest: str) -> StoredDefinition:
    """Raises Misuse."""
    from perdure.models.graphs.stored_definitions import RECORD_KIND, StoredDefinition

    found = await session.caller_store.record(RECORD_KIND, digest, None)
    if found is None:
        raise Misuse(f"the definition of run {run.id!r} ({digest}) is not in the store; pass the graph: graph=…")
    return msgspec.json.decode(session.codec.decode(found.body), type=StoredDefinition)


__all__ = ["definition_of", "drawing_of", "graph_events_of", "tokens_of"]
