"""`perdure doctor`: check the store and its engines, and say what to do about each problem."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec import Struct

from perdure.cli.commands import command
from perdure.cli.errors import Code, refused
from perdure.cli.formats import ago, size, span
from perdure.cli.settings import file_of, not_in_memory, shown
from perdure.cli.terminal import Terminal

if TYPE_CHECKING:
    from perdure.engine import AnyClient

_ACTIVE_MAX = 10_000
_NAMED = 3
_PATIENCE_S = 5.0  # short, because a store that does not answer is a finding that should be shown soon
_CLOCK_OFF = timedelta(seconds=2)
_ROOM_MIN_BYTES, _ROOM_SCARCE_BYTES = 100 * 1024**2, 1024**3


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check. `state` is ok, warning or problem."""

    check: str
    state: str
    found: str
    todo: str = ""


def add_to(app: typer.Typer) -> None:
    @command(app, "doctor")
    async def doctor(terminal: Terminal) -> int:
        """Check the store and its engines.

        Each problem is shown with what to do about it. Exits with 1 if there are problems."""
        findings, code = await examine(terminal)
        if terminal.as_json:
            terminal.document({"store": shown(terminal.settings.store), "findings": findings})
            return code
        if terminal.is_tty:
            terminal.print_text(shown(terminal.settings.store))
        terminal.table(("state", "what", "found"), [(one.state, one.check, one.found) for one in findings], empty="")
        for one in findings:
            if one.todo:
                terminal.print_text(f"{one.check}: {one.todo}")
        return code


async def examine(terminal: Terminal) -> tuple[list[Finding], int]:
    """Return all findings, and the exit code."""
    url = terminal.settings.store
    not_in_memory(url)
    findings = [_disk(url)]
    try:
        findings.append(await _schema(url))
        if findings[-1].state == "ok":
            async with terminal.client(patience_s=_PATIENCE_S) as client:
                looks: list[Callable[[AnyClient], Awaitable[Finding]]] = [
                    _engines, _stranded, _held, _overdue, _dead_letters, _clock,
                ]  # fmt: skip
                findings += [await look(client) for look in looks]
            if client.session.sign_off_failure is not None:
                # If the disk of a database server is full, the server still answers reads, and writes that need no more
                # space.
                raise client.session.sign_off_failure
    except Exception as error:
        refusal = refused(error)
        if refusal is None or refusal.code != Code.STORE:
            raise
        findings.append(Finding(check="store", state="problem", found=refusal.what, todo=refusal.todo or "see above"))
        return [*findings, *_files(url)], Code.STORE
    findings += _files(url)  # Opening the store detects lost commits, and leaves a report about them.
    is_well = all(one.state != "problem" for one in findings)
    return findings, Code.DONE if is_well else Code.FAILED


async def _schema(url: str) -> Finding:
    from perdure import upgrade

    schema = await upgrade.examine(url)
    if schema.lacks:
        more = f" and {len(schema.lacks) - _NAMED} more" if len(schema.lacks) > _NAMED else ""
        return Finding(
            check="store",
            state="problem",
            found=f"lacks {', '.join(schema.lacks[:_NAMED])}{more}: engines restart, and stop in the end",
            todo="restore missing tables from a backup; if rights are missing, the schema's owner runs: perdure migrate"
            " --grant ROLE",
        )
    if schema.is_current:
        return Finding(check="store", state="ok", found=f"reachable; schema version {schema.known}")
    if not schema.found:
        return Finding(
            check="store",
            state="problem",
            found="it does not exist yet",
            todo="check that it is the right store; perdure migrate and perdure worker create it",
        )
    return Finding(
        check="store",
        state="problem",
        found=f"has schema version {schema.found}, and this Perdure needs {schema.known}",
        todo="stop older engines, then: perdure migrate",
    )


def _disk(url: str) -> Finding:
    file = file_of(url)
    if file is None:
        return Finding(check="disk", state="ok", found="is that of the database server, which this command cannot see")
    folder = file.resolve().parent
    if not folder.is_dir():
        todo = "create it, or name another store"
        return Finding(check="disk", state="problem", found=f"there is no folder {folder}", todo=todo)
    free = shutil.disk_usage(folder).free
    used = sum(path.stat().st_size for name in ("", "-wal") if (path := Path(f"{file}{name}")).exists())
    found = f"{size(free)} free, {size(used)} used by the store"
    state = "problem" if free < _ROOM_MIN_BYTES else "warning" if free < _ROOM_SCARCE_BYTES else "ok"
    todo = f"free some space on the disk of {folder}: a full disk stops all writes" if state != "ok" else ""
    return Finding(check="disk", state=state, found=found, todo=todo)


def _files(url: str) -> list[Finding]:
    """Check an SQLite file. Commits may have been lost, or this version of SQLite may have a bug that can damage the
    file.
    """
    from perdure.upgrade import look_at_file

    file = file_of(url)
    if file is None:
        return []
    view = look_at_file(file)
    findings = [
        Finding(check="file", state="problem", found=lost, todo=f"once you have dealt with the loss, delete {note}")
        for note, lost in view.lost
    ]
    version = view.sqlite_version
    if view.has_reset_bug:
        findings.append(
            Finding(
                check="SQLite",
                state="warning",
                found=f"version {version} has the WAL-reset bug (3.7.0 to 3.51.2): where several processes write to one"
                " file, a rare race can damage it",
                todo="use a Python with SQLite 3.51.3 or newer; until then use the file with one engine at a time, and"
                " with no other program that writes to it or makes checkpoints",
            )
        )
    else:
        findings.append(Finding(check="SQLite", state="ok", found=f"version {version}"))
    return findings


async def _engines(client: AnyClient) -> Finding:
    from perdure.kernel.status import ACTIVE

    await client.engines.mark_dead()  # Without this, engines that died without signing off would count as alive.
    me = (socket.gethostname(), os.getpid())
    alive = [one for one in await client.engines.list() if (one.host, one.pid) != me]
    working = [one for one in alive if one.workflows]
    if working:
        return Finding(check="engines", state="ok", found=f"{len(working)} alive, {len(alive) - len(working)} clients")
    has_work = bool((await client.runs.list(status=sorted(ACTIVE), limit=1)).runs)
    return Finding(
        check="engines",
        state="problem" if has_work else "warning",
        found="none is alive" + (", and there are runs that have not ended" if has_work else ""),
        todo="start an engine: perdure worker MODULE",
    )


async def _stranded(client: AnyClient) -> Finding:
    from perdure.kernel.status import ACTIVE

    seen, found, cursor = 0, list[str](), None
    reasons: set[str] = set()
    while seen < _ACTIVE_MAX:
        page = await client.runs.list(status=sorted(ACTIVE), limit=1000, cursor=cursor)
        seen += len(page.runs)
        for run in page.runs:
            if run.stranded is not None:
                found.append(run.id)
                reasons.add(run.stranded)
        if (cursor := page.cursor) is None:
            break
    whole = "" if cursor is None else f" of the newest {seen} that have not ended"
    if not found:
        return Finding(check="stranded runs", state="ok", found=f"none{whole}")
    return Finding(
        check="stranded runs",
        state="problem",
        found=f"{_some(found)}{whole}: {'; '.join(sorted(reasons)[:_NAMED])}",
        todo="start an engine that has their code in that version, or cancel the runs: perdure runs cancel ID",
    )


async def _held(client: AnyClient) -> Finding:
    found: dict[str, list[str]] = {}
    for kind in ("blocked", "poison", "paused"):
        page = await client.runs.list(hold=kind, limit=1000)
        if page.runs:
            found[kind] = [run.id for run in page.runs]
    if not found:
        return Finding(check="held runs", state="ok", found="none")
    advice = {
        "blocked": "blocked: see why (perdure runs show ID). If the code does not fit the journal, deploy code that"
        " does, and the runs continue by themselves. If the store is damaged, correct the row that is named, then"
        " perdure runs resume ID",
        "poison": "poison: they kept killing their process; look at their history, then perdure runs resume ID",
        "paused": "paused: perdure runs resume ID",
    }
    return Finding(
        check="held runs",
        state="warning" if set(found) == {"paused"} else "problem",
        found="; ".join(f"{kind} {_some(ids)}" for kind, ids in found.items()),
        todo="; ".join(advice[kind] for kind in found),
    )


async def _overdue(client: AnyClient) -> Finding:
    late = await client.engines.overdue(limit=1000)
    if not late:
        return Finding(check="overdue timers", state="ok", found="none")
    return Finding(
        check="overdue timers",
        state="problem",
        found=f"{_some([one.run_id for one in late])}, the first due {ago(late[0].due_at)}",
        todo="no live engine takes these runs: start an engine that has their code (perdure worker MODULE), or check"
        " why the engines that have it do not",
    )


async def _dead_letters(client: AnyClient) -> Finding:
    letters = await client.dead_letters.list(limit=1000)
    if not letters:
        return Finding(check="dead letters", state="ok", found="none")
    names = sorted({letter.name for letter in letters})
    many = "1000 or more" if len(letters) == 1000 else str(len(letters))
    return Finding(
        check="dead letters",
        state="warning",
        found=f"{many}, of {', '.join(names[:_NAMED])}",
        todo="look at them (perdure dead-letters list), then replay or remove them",
    )


async def _clock(client: AnyClient) -> Finding:
    """Compare this machine's clock with the times in the store. No stored time may be later than now."""
    now = datetime.now(UTC)
    written = [run.updated_at for run in (await client.runs.list(limit=20)).runs]
    written += [engine.started_at for engine in await client.engines.list()]
    ahead = max(written) - now
    if ahead < _CLOCK_OFF:
        return Finding(check="clock", state="ok", found=f"{now:%Y-%m-%d %H:%M:%SZ}, not behind the times in the store")
    return Finding(
        check="clock",
        state="problem",
        found=f"is {span(ahead)} behind a time that another machine, or this one earlier, has stored",
        todo="synchronise the clocks of all machines with NTP: otherwise timers fire at the wrong time",
    )


def _some(ids: list[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"{len(ids)} ({', '.join(ids[:_NAMED])}{more})"


__all__ = ["Finding", "add_to", "examine"]
