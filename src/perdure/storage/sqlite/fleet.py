"""Engines that share a file: which engines are alive, and which runs each engine owns.

All functions except `look` run in the writer's thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from perdure.errors import CommitRefused, StoreBroken
from perdure.kernel.rows import Engine
from perdure.ports import ENGINES_KEPT_US, LoadedRun, Offer, WorkFound
from perdure.storage.claims import better_models, models_of, versions_of
from perdure.storage.sqlite.checkpoints import bring_in_all
from perdure.storage.sqlite.commit import check_fence
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.liveness import SignsOfLife
from perdure.storage.sqlite.lost_commits import report_loss, report_losses
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.reads import due_waits, load_now
from perdure.storage.sqlite.rows import engine_of, json_text
from perdure.storage.sqlite.transaction import snapshot, transaction

_COUNT_MAX: Final = 2**62
_FORGOTTEN_AT_ONCE: Final = 100
_COUNT_MARGIN: Final = 1_000_000  # skipping a number is harmless, but using a number twice is not


def enroll(connection: sqlite3.Connection, *, path: Path, signs: SignsOfLife, row: dict[str, Any]) -> Engine:
    engine_id: str = row["id"]
    report_losses(connection, path)
    _check_count(connection, path, "sequence", "value", "last_number")
    _check_count(connection, path, "handler_book", "version", "book_version")
    # The sign of life comes first, because no reader may see a living engine in the table without its sign of life.
    if not signs.give(engine_id):
        raise CommitRefused(f"engine {engine_id!r} is enrolled already; every engine needs its own id")
    try:
        with transaction(connection):
            connection.execute(QUERIES["enroll"], {**row, "workflows": json_text(row["workflows"])})
            return engine_of(connection.execute(QUERIES["engine"], {"id": engine_id}).fetchone())
    except BaseException:
        signs.withdraw(engine_id)
        raise


def _check_count(connection: sqlite3.Connection, path: Path, table: str, column: str, query: str) -> None:
    """Raise StoreBroken if a counter that all engines share is missing."""
    try:
        rows = connection.execute(QUERIES[query]).fetchall()
    except sqlite3.OperationalError:
        return  # The table is missing. The first statement that needs the table reports that.
    if len(rows) == 1 and type(rows[0][0]) is int and 0 <= rows[0][0] < _COUNT_MAX:
        return
    number: int = connection.execute(QUERIES["numbers_used"]).fetchone()[0] + _COUNT_MARGIN
    repair = f"update {table} set {column} = {number}" if rows else f"insert into {table} values ({number})"  # noqa: S608
    raise StoreBroken(
        f"{path} is damaged: {table}.{column} holds {rows[0][0] if rows else None!r:.80}, which is no valid number;"
        f" stop all engines, then restore the file from a backup, or run this SQL: {repair}",
        path=path,
    )


def retire(connection: sqlite3.Connection, *, signs: SignsOfLife, engine_id: str) -> None:
    with transaction(connection):
        connection.execute(QUERIES["mark_dead"], {"id": engine_id})
        connection.execute(QUERIES["release"], {"id": engine_id})
    if signs.tells_of_commits(engine_id) and not bring_in_all(connection):
        return  # Some commits are only in the log, so the row and the lock file stay, as for a dead engine.
    signs.note(engine_id, 0)  # The engine's row has the number of its commits, and the row is about to be deleted.
    with transaction(connection):
        connection.execute(QUERIES["sign_off"], {"id": engine_id})
        connection.execute(QUERIES["forget_signed_off"], {"limit": _FORGOTTEN_AT_ONCE})


def mark_dead_engines(connection: sqlite3.Connection, *, signs: SignsOfLife) -> list[str]:
    dead = signs.dead([engine_id for (engine_id,) in connection.execute(QUERIES["living"]).fetchall()])
    if not dead:
        return []
    is_done = False
    try:
        with transaction(connection):
            # An engine that has retired in the meantime is not counted.
            marked_dead = [e for e in dead if connection.execute(QUERIES["mark_dead"], {"id": e}).rowcount]
        is_done = True
        return marked_dead
    finally:
        signs_found = [sign for sign in dead.values() if sign]
        tells = any(sign.tells_of_commits for sign in signs_found)
        is_safe = is_done and (not tells or bring_in_all(connection))
        for sign in signs_found:
            sign.let_go(tidy=is_safe or (is_done and not sign.tells_of_commits))


def purge_engines(connection: sqlite3.Connection, *, path: Path, signs: SignsOfLife, at: int, limit: int) -> int:
    """Delete engines that have been dead for a long time. Returns how many were deleted."""
    with transaction(connection):
        connection.execute(QUERIES["note_ended"], {"at": at, "limit": 10 * limit})
        wanted = {"before": at - ENGINES_KEPT_US, "limit": limit}
        needless = connection.execute(QUERIES["needless_engines"], wanted).fetchall()
    # An engine that marks another engine dead may die before it deletes that engine's lock file. A lock file with the
    # number of a commit, but without a row in the database, would look like a lost commit.
    locks = [(epoch, signs.path(engine_id.decode("utf-8", "replace"))) for epoch, engine_id in needless]
    epochs = [epoch for epoch, lock in locks if report_loss(connection, path, lock)]
    if not epochs:
        return 0
    with transaction(connection):
        return connection.execute(QUERIES["purge_engines"], {"ids": json_text(epochs)}).rowcount


def claim(
    connection: sqlite3.Connection, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int
) -> list[LoadedRun]:
    with transaction(connection):
        check_fence(connection, engine_id, epoch)
        found = _claimable(connection, offers, max(0, limit))
        orphaned = {run_id: is_orphaned for _, run_id, is_orphaned in sorted(found, key=_age)[: max(0, limit)]}
        if not orphaned:
            return []
        ids = list(orphaned)
        connection.execute(QUERIES["take_over"], {"owner": engine_id, "ids": json_text(ids)})
        loaded = {one.run.id: one for one in load_now(connection, ids)}
        for run_id, model in better_models([one.run for one in loaded.values()], offers).items():
            connection.execute(QUERIES["put_model"], {"run_id": run_id, "model": model})
            loaded[run_id] = replace(loaded[run_id], run=replace(loaded[run_id].run, model=model))
        return [replace(loaded[run_id], orphaned=orphaned[run_id]) for run_id in ids]


def _claimable(connection: sqlite3.Connection, offers: Sequence[Offer], limit: int) -> list[tuple[int, str, bool]]:
    """Return the runs to claim. Each has the creation time, the id, and whether the run's owner is dead.

    For each offer and owner, the runs are in order, up to the limit.
    """
    owners = [None, *(owner for (owner,) in connection.execute(QUERIES["owners"]))]
    found: list[tuple[int, str, bool]] = []
    for offer in offers:
        wanted: dict[str, object] = {
            "workflow": offer.workflow,
            "version": offer.version,
            "begun": offer.begun,
            "limit": limit,
        }
        wanted["model"], wanted["or_model"] = models_of(offer)
        # For each owner and offer, a short part of the index is read, however many other runs wait.
        for owner in owners:
            for stored in versions_of(offer):
                place = {"owner": owner, "stored_version": stored}
                for created_at, run_id in connection.execute(QUERIES["claimable"], {**wanted, **place}):
                    found.append((created_at, run_id, owner is not None))
        if offer.fingerprint:
            found += _blocked(connection, offer, limit)
    return found


def _blocked(connection: sqlite3.Connection, offer: Offer, limit: int) -> list[tuple[int, str, bool]]:
    """Return the blocked runs that the offered code may fit, in the same form."""
    wanted: dict[str, object] = {
        "workflow": offer.workflow,
        "version": offer.version,
        "fingerprint": offer.fingerprint,
        "begun": offer.begun,
        "limit": limit,
    }
    wanted["model"], wanted["or_model"] = models_of(offer)
    found = connection.execute(QUERIES["claimable_blocked"], wanted)
    return [(created_at, run_id, owner is not None) for created_at, run_id, owner in found]


def _age(found: tuple[Any, str, bool]) -> tuple[int, str]:
    """Return the sort key of a run.

    A run whose creation time is not a number comes last, as in SQLite. It is held as soon as it is read.
    """
    return (found[0] if isinstance(found[0], int) else _COUNT_MAX, found[1])


def look(
    connection: sqlite3.Connection, *, signs: SignsOfLife, engine_id: str, offers: Sequence[Offer], at: int
) -> WorkFound:
    """Find out whether there is work for an engine. This runs in the reader's thread."""
    with snapshot(connection):
        living = [living_id for (living_id,) in connection.execute(QUERIES["living"])]
        has_mail = connection.execute(QUERIES["has_mail"], {"engine_id": engine_id}).fetchone() is not None
        wanted = {"offers": offers_text(offers), "before": at + 1, "limit": 1}
        is_stray = (
            bool(_claimable(connection, offers, 1))
            or bool(due_waits(connection, wanted=wanted, limit=1))
            or connection.execute(QUERIES["ripe_deadlines"], wanted).fetchone() is not None
        )
        is_blocked = any(_blocked(connection, offer, 1) for offer in offers)
    return WorkFound(mail=has_mail, dead=signs.is_any_gone(living), stray=is_stray, blocked=is_blocked)


def offers_text(offers: Sequence[Offer]) -> str:
    """Return a text that tells a query which runs fit the offers. Only runs that have begun are included.

    This is enough, because runs that have not begun have no waits, and runs of operations have no deadlines.
    """
    begun = [offer for offer in offers if offer.begun is not False]
    return json_text([(offer.workflow, offer.version, model) for offer in begun for model in set(models_of(offer))])


class SqliteFleet(SqliteSlice):
    """Engines."""

    def listen(self, on_change: Callable[[], object]) -> None:
        self._db.listen(on_change)

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> WorkFound:
        self._db.files.check()
        return await self._db.read(partial(look, signs=self._db.signs, engine_id=engine_id, offers=[*offers], at=at))

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        row = {"id": engine_id, "host": host, "pid": pid, "workflows": [*workflows], "started_at": at}
        return await self._db.write(partial(enroll, path=self._db.path, signs=self._db.signs, row=row))

    async def retire(self, engine_id: str) -> None:
        await self._db.write(partial(retire, signs=self._db.signs, engine_id=engine_id))
        self._db.neighbour.notify()  # The runs of this engine have no owner now.

    def withdraw(self, engine_id: str) -> None:
        self._db.signs.withdraw(engine_id)

    def is_surely_alive(self) -> bool:
        return bool(self._db.signs.held)  # A process keeps its locks while it is stopped.

    async def mark_dead_engines(self) -> list[str]:
        return await self._db.write(partial(mark_dead_engines, signs=self._db.signs))

    async def engines(self, *, living: bool = False) -> list[Engine]:
        return [engine_of(row) for row in await self._db.fetch("living_engines" if living else "engines", {})]

    async def claim(self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int) -> list[LoadedRun]:
        return await self._db.write(partial(claim, engine_id=engine_id, epoch=epoch, offers=[*offers], limit=limit))
