"""The tables: the schema version of a file, and the migrations that upgrade it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from perdure.errors import SchemaTooNew, StoreBroken
from perdure.storage.sqlite.transaction import transaction


def _load_migrations() -> Mapping[int, str]:
    # importlib.resources is not used, because importing it takes as long as opening the file.
    files = Path(__file__).with_name("migrations").glob("*.sql")
    return {int(file.name[:4]): file.read_text("utf-8") for file in files}


MIGRATIONS: Final = dict(sorted(_load_migrations().items()))
SCHEMA_VERSION: Final = max(MIGRATIONS)
OUR_TABLES: Final = frozenset(
    name for text in MIGRATIONS.values() for name in re.findall(r"^create table (\w+)", text, re.MULTILINE)
)


def inspect(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the schema in a file, or 0 if the file has no schema. This writes nothing.

    Raises SchemaTooNew. Raises StoreBroken if somebody else's tables have our names.
    """
    tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
    if "perdure_schema" not in tables:
        if taken := sorted(tables & OUR_TABLES):
            raise StoreBroken(
                f"{path} has tables that Perdure did not make but whose names it needs ({', '.join(taken)}); give"
                " Perdure a file of its own",
                path=path,
            )
        return 0
    version: object = connection.execute("select max(version) from perdure_schema").fetchone()[0]
    if type(version) is not int or version < 1:
        raise StoreBroken(
            f"{path} has lost the version of its schema: perdure_schema.version is {version!r:.80}; restore the file"
            " from a backup",
            path=path,
        )
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{path} has schema version {version}, and this Perdure knows versions up to {SCHEMA_VERSION}; upgrade"
            " Perdure, or restore a backup from before the upgrade",
            path=path,
            version=version,
            known=SCHEMA_VERSION,
        )
    return version


def lacking(connection: sqlite3.Connection) -> list[str]:
    """Return the tables that are missing in a file of the newest version. This writes nothing."""
    names = "select name from sqlite_master where type = 'table'"
    found = {name for (name,) in connection.execute(names)}
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        migrate(model, Path(":memory:"))
        return [name for (name,) in model.execute(names) if name not in found]


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply the migrations that a file lacks, each in a transaction of its own.

    Safe with other processes: the process that gets the lock second finds the work done. A crash leaves whole
    migrations.
    """
    for number, text in MIGRATIONS.items():
        with transaction(connection):
            if inspect(connection, path) < number:
                for statement in _statements(text):
                    connection.execute(statement)
                connection.execute("delete from perdure_schema")
                connection.execute("insert into perdure_schema (version) values (?)", (number,))


def _statements(text: str) -> Iterator[str]:
    """Split a migration into statements. They are executed one by one, since sqlite3's executescript would commit
    first."""
    statement = ""
    for line in text.splitlines(keepends=True):
        if not line.startswith("--"):
            statement += line
            if sqlite3.complete_statement(statement):
                yield statement
                statement = ""
