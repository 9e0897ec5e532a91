"""Stores with very many runs of all kinds, quickly, by one statement that SQLite and Postgres both take.

Of a million: ten workflows and a rare one, four fifths succeeded, a tenth suspended, all other statuses, some held, ten
thousand children of one parent, two tags each: one that half of them have, one that twenty have. One workflow never
fails.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg

from perdure.storage import open_store

APART_US: Final = 1_000
BEGAN_US: Final = 1_700_000_000_000_000
RARE, UNFAILING, PARENT = "flow-rare", "flow-3", "run-1000000001"

# Which of a thousand have which status: `n * 7919 % 1000` mixes them, whatever the workflow and the tags.
_STATUS: Final = """
case
    when mixed < 800 then 'succeeded' when mixed < 900 then 'suspended'
    when mixed < 960 then case when flow = 'flow-3' then 'succeeded' else 'failed' end
    when mixed < 980 then 'cancelled' when mixed < 990 then 'running' when mixed < 995 then 'created'
    when mixed < 997 then 'cancelling' when mixed < 998 then 'rolling_back' when mixed < 999 then 'rolled_back'
    when n % 13 = 0 then 'rollback_failed' else 'succeeded'
end
"""
_ROWS: Final = f"""
insert into runs (
    id, workflow, workflow_version, model, status, version, revision, claim, parent_id, bond, undo, origin, born, tags,
    hold_kind, hold, attempt, recoveries, created_at, started_at, updated_at, input{{more_columns}}
)
with recursive numbers (n) as (select cast(1 as bigint) union all select n + 1 from numbers where n < {{count}}),
mixed as (
    select n, n * 7919 % 1000 as mixed,
        case when n % 50000 = 7 then '{RARE}' else 'flow-' || (n % 10) end as flow
    from numbers
),
placed as (select n, mixed, flow, {_STATUS} as status, {BEGAN_US} + n * {APART_US} as at from mixed)
select 'run-' || (1000000000 + n), flow, '', 'function', status, 1, 1, 1,
    case when n % 100 = 50 then '{PARENT}' end, '', 0, '', 0,
    '{{{{"customer":"c-' || (n % 50000)
        || '","env":"' || case when (n / 10) % 2 = 0 then 'prod' else 'test' end || '"}}}}',
    case
        when status = 'suspended' and n % 77 = 0 then 'paused'
        when status = 'running' and n % 3 = 0 then 'blocked'
    end,
    case
        when status = 'suspended' and n % 77 = 0 then '{{{{"kind":"paused","reason":"asked for","at":0}}}}'
        when status = 'running' and n % 3 = 0 then '{{{{"kind":"blocked","reason":"code changed","at":0}}}}'
    end,
    1, 0, at, at, at, '{{{{}}}}'{{more_values}}
from placed
"""


def created(number: int) -> datetime:
    """When the run with this number was started, the first being 1."""
    return datetime.fromtimestamp((BEGAN_US + number * APART_US) / 1_000_000, UTC)


def cursor(number: int) -> str:
    """That of a page whose last run is this one."""
    return f"{BEGAN_US + number * APART_US}:run-{1_000_000_000 + number}"


async def fill_sqlite(path: Path, count: int) -> None:
    store = open_store(f"sqlite:///{path}")
    await store.open()
    await store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("pragma synchronous = off")
        db.execute("pragma cache_size = -200000")
        db.execute("begin")
        db.execute(_ROWS.format(count=count, more_columns=", spilled", more_values=", 0"))
        db.execute("commit")
        db.execute("pragma wal_checkpoint(truncate)")


async def fill_postgres(url: str, count: int) -> None:
    store = open_store(url)
    await store.open()
    await store.close()
    driver: Any = asyncpg
    connection = await driver.connect(url, server_settings={"search_path": "perdure", "synchronous_commit": "off"})
    # A function call for each of a million rows would take longer than all else.
    await connection.execute("alter table runs disable trigger run_tags_insert")
    await connection.execute(_ROWS.format(count=count, more_columns="", more_values=""))
    await connection.execute("alter table runs enable trigger run_tags_insert")
    await connection.execute(
        "insert into run_tags (key, value, created_at, run_id)"
        " select given.key, given.value, created_at, id from runs, json_each_text(tags::json) as given order by 1, 2, 3"
    )
    await connection.execute("vacuum analyze")
    await connection.close()
