"""Engines that share a file: who is there, who owns what, mail. All but `look` runs in the writer's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from perdure.errors import CommitRefused, StoreBroken
from perdure.kernel.records import Engine, Mail
from perdure.ports import ENGINES_KEPT_US, LoadedRun, News, Offer
from perdure.storage.claims import better_models, models_of, versions_of
from perdure.storage.sqlite.commit import check_fence, posting
from perdure.storage.sqlite.liveness import SignsOfLife
from perdure.storage.sqlite.losses import report_loss, report_losses
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.reads import load_now, ripe_waits
from perdure.storage.sqlite.rows import engine_of, json_text
from perdure.storage.sqlite.transaction import snapshot, transaction

_COUNT_MAX: Final = 2**62
_FORGOTTEN_AT_ONCE: Final = 100
_COUNT_MARGIN: Final = 1_000_000  # A number that is passed over does no harm, one that comes twice does.


def enroll(connection: sqlite3.Connection, *, path: Path, signs: SignsOfLife, row: dict[str, Any]) -> Engine:
    engine_id: str = row["id"]
    report_losses(connection, path)
    _check_count(connection, path, "sequence", "value", "last_number")
    _check_count(connection, path, "handler_book", "version", "book_version")
    # The sign comes first: an engine that is alive in the table must never be seen without it.
    if not signs.give(engine_id):
        raise CommitRefused(f"engine {engine_id!r} is enrolled already; every engine takes an id of its own")
    try:
        with transaction(connection):
            connection.execute(QUERIES["enroll"], {**row, "workflows": json_text(row["workflows"])})
            return engine_of(connection.execute(QUERIES["engine"], {"id": engine_id}).fetchone())
    except BaseException:
        signs.withdraw(engine_id)
        raise


def _check_count(connection: sqlite3.Connection, path: Path, table: str, column: str, query: str) -> None:
    """Raise StoreBroken unless a count that all engines share is there."""
    try:
        rows = connection.execute(QUERIES[query]).fetchall()
    except sqlite3.OperationalError:
        return  # The table is not there: whoever needs it finds that out.
    if len(rows) == 1 and type(rows[0][0]) is int and 0 <= rows[0][0] < _COUNT_MAX:
        return
    number: int = connection.execute(QUERIES["numbers_used"]).fetchone()[0] + _COUNT_MARGIN
    repair = f"update {table} set {column} = {number}" if rows else f"insert into {table} values ({number})"  # noqa: S608
    raise StoreBroken(
        f"{path} is damaged: {table}.{column} holds {rows[0][0] if rows else None!r:.80} and no number; stop all"
        f" engines, then restore the file from a backup, or run this SQL: {repair}",
        path=path,
    )


def retire(connection: sqlite3.Connection, *, signs: SignsOfLife, engine_id: str) -> None:
    signs.note(engine_id, 0)  # Whoever forgets it knows of none of its commits.
    with transaction(connection):
        connection.execute(QUERIES["mark_dead"], {"id": engine_id})
        connection.execute(QUERIES["release"], {"id": engine_id})
        connection.execute(QUERIES["sign_off"], {"id": engine_id})
        connection.execute(QUERIES["forget_signed_off"], {"limit": _FORGOTTEN_AT_ONCE})


def mark_dead_engines(connection: sqlite3.Connection, *, signs: SignsOfLife) -> list[str]:
    dead = signs.dead([engine_id for (engine_id,) in connection.execute(QUERIES["living"]).fetchall()])
    if not dead:
        return []
    is_done = False
    try:
        with transaction(connection):
            # An engine that retired in between is not counted.
            marked_dead = [e for e in dead if connection.execute(QUERIES["mark_dead"], {"id": e}).rowcount]
        is_done = True
        return marked_dead
    finally:
        for sign in dead.values():
            if sign:
                sign.let_go(tidy=is_done)


def purge_engines(connection: sqlite3.Connection, *, path: Path, signs: SignsOfLife, at: int, limit: int) -> int:
    """Forget engines that have been dead for long; how many. Inside a transaction."""
    connection.execute(QUERIES["note_ended"], {"at": at, "limit": 10 * limit})
    wanted = {"before": at - ENGINES_KEPT_US, "limit": limit}
    needless = connection.execute(QUERIES["needless_engines"], wanted).fetchall()
    for _, engine_id in needless:
        # Whoever marked it dead may have died before it tidied up. A lock file that tells of commits, and has no row,
        # would look as if they were lost.
        report_loss(connection, path, signs.path(engine_id.decode("utf-8", "replace")))
    epochs = json_text([epoch for epoch, _ in needless])
    return connection.execute(QUERIES["purge_engines"], {"ids": epochs}).rowcount if needless else 0


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
    """Runs to claim: when each was created, its id, and whether its owner died with it. Those that fit one offer and
    have one owner come in order, up to the limit."""
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
        # One short walk through the index for each owner and offer is never long, whatever else waits.
        for owner in owners:
            for stored in versions_of(offer):
                place = {"owner": owner, "stored_version": stored}
                for created_at, run_id in connection.execute(QUERIES["claimable"], {**wanted, **place}):
                    found.append((created_at, run_id, owner is not None))
        if offer.fingerprint:
            found += _blocked(connection, offer, limit)
    return found


def _blocked(connection: sqlite3.Connection, offer: Offer, limit: int) -> list[tuple[int, str, bool]]:
    """The same of blocked runs that the offered code may fit."""
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
    """A run whose time of creation is no number comes last, as in SQLite's order, and is held once it is read."""
    return (found[0] if isinstance(found[0], int) else _COUNT_MAX, found[1])


def look(
    connection: sqlite3.Connection, *, signs: SignsOfLife, engine_id: str, offers: Sequence[Offer], at: int
) -> News:
    """Runs in the reader's thread."""
    with snapshot(connection):
        living = [living_id for (living_id,) in connection.execute(QUERIES["living"])]
        has_mail = connection.execute(QUERIES["has_mail"], {"engine_id": engine_id}).fetchone() is not None
        wanted = {"offers": offers_text(offers), "before": at + 1, "limit": 1}
        is_stray = (
            bool(_claimable(connection, offers, 1))
            or bool(ripe_waits(connection, wanted=wanted, limit=1))
            or connection.execute(QUERIES["ripe_deadlines"], wanted).fetchone() is not None
        )
        is_blocked = any(_blocked(connection, offer, 1) for offer in offers)
    return News(mail=has_mail, dead=signs.is_any_gone(living), stray=is_stray, blocked=is_blocked)


def offers_text(offers: Sequence[Offer]) -> str:
    """Which runs fit that have begun, for a query: others have no waits, and runs of operations no deadlines."""
    begun = [offer for offer in offers if offer.begun is not False]
    return json_text([(offer.workflow, offer.version, model) for offer in begun for model in set(models_of(offer))])


def post(connection: sqlite3.Connection, *, mail: Mail) -> int:
    with transaction(connection):
        left = connection.execute(*posting(mail))
        return (left.lastrowid or 0) if left.rowcount else 0


def collect(connection: sqlite3.Connection, *, slots: list[str]) -> dict[str, str]:
    with transaction(connection):
        return dict(connection.execute(QUERIES["take_replies"], {"ids": json_text(slots)}).fetchall())
