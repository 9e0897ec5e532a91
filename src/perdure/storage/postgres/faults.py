"""Errors of Postgres and of the network, and the store errors that they become for callers."""

from __future__ import annotations

import socket
import ssl
from typing import Final

import asyncpg

from perdure.errors import CommitRefused, StoreBroken, StoreBusy, StoreError, StoreMisconfigured

CONFLICT: Final = "PD001"
NEEDS_MATCHING: Final = "PD002"
LETTERS_GONE: Final = "PD003"
BOOK_CHANGED: Final = "PD004"
LOCKED: Final = "55P03"
UNIQUE: Final = "23505"
_READ_ONLY: Final = "25006"

# A transaction is open where none should be, or no transaction is open where one should be. The connection is in a
# wrong state, so it is closed by force.
_WRONG_STATE: Final = ("25001", "25P01", "25P02")

# Classes (two characters) or whole codes. Any other code means a bug in Perdure, or tables that are not Perdure's.
_PASSING: Final = frozenset(
    {
        "08",  # connection exceptions
        *_WRONG_STATE,
        "25P03",  # idle in transaction for too long
        "25P04",  # the transaction took too long
        _READ_ONLY,  # a standby, or a server during a switchover
        "40",  # serialization failures and deadlocks
        "53",  # out of disk, memory or connections
        LOCKED,  # a lock was not available in time
        "57014",  # cancelled, because a statement took too long
        "57P01",  # the server is shutting down,
        "57P02",  # has crashed,
        "57P03",  # is starting up,
        "57P05",  # or has closed an idle session
        "58",  # I/O errors of the server itself
    }
)
_REFUSED: Final = frozenset({"22", "23", "54"})  # data, constraints, limits
_CORRUPT: Final = frozenset({"XX001", "XX002"})
_CLOSED: Final = {
    "28P01": "the password is wrong, or there is none; check it in the URL, PGPASSWORD or the passfile",
    "28": "the server rejects this user; check the user and pg_hba.conf, which may ask for sslmode=require",
    "3D": "there is no such database; create it, or correct the URL or PGDATABASE",
    "42501": (
        "this user has not all the rights that an engine needs; have the owner of the schema grant them with"
        " perdure.storage.postgres.upgrade"
    ),
}

# The resource that the server lacks, and the remedy.
_SHORT_OF: Final = {
    "53100": "has no space left on its disk; free some, and the write will succeed when tried again",
    "53200": "has no memory left; give the server more, or let fewer programs use it",
    "53300": (
        "has no connection left; raise max_connections, or the limit of this role or database, or let fewer programs"
        " use it"
    ),
}

REFUSES_TLS: Final = "rejected SSL upgrade"  # a part of the message of the driver

LOST: Final = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# All errors of the driver: errors of the server, errors of the network, and states that the driver did not expect.
FAULTS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

# Errors of the server that no statement causes: no space, no connections, I/O errors, and a transaction that the server
# rolled back in favour of another transaction.
_OF_THE_SERVER: Final = frozenset({"53000", "53100", "53300", "58000", "58030", "40001", "40P01"})


def is_lost(error: BaseException) -> bool:
    """Return whether the connection broke, so that the outcome of the last request is unknown."""
    if isinstance(error, asyncpg.DataError) or _is_about_values(error):
        return False
    if isinstance(error, LOST):
        return True
    # A server that ends a session may do so after a commit, but before it reports the commit.
    return isinstance(error, asyncpg.PostgresError) and _code(error) in ("57P01", "57P02", "57P05")


def is_definite(error: BaseException) -> bool:
    """Return whether the server itself refused the request and the connection still works."""
    severity = getattr(error, "severity", None)
    if severity is None:
        # The driver could not encode a value. It stopped in the middle of a request, and the transaction of this
        # request is still open.
        return False
    if sqlstate(error) in _WRONG_STATE:
        return False
    if sqlstate(error) == _READ_ONLY:
        return False  # Another server is the primary now. The next connection will find it.
    return isinstance(error, asyncpg.PostgresError) and severity not in ("FATAL", "PANIC") and not is_lost(error)


def is_broken(error: BaseException) -> bool:
    """Return whether the connection is gone. Unlike `is_lost`, this returns False if the connection was only used in a
    wrong way.
    """
    return is_lost(error) and not isinstance(error, asyncpg.InterfaceError)


def is_passing(error: BaseException) -> bool:
    """Return whether the server may be able to carry out the same request later. Return False if it never will, for
    example because a trigger raises an error.
    """
    code = sqlstate(error)
    return code in _PASSING or code[:2] in _PASSING


def is_of_the_server(error: BaseException) -> bool:
    """Return whether a statement failed because of the server, and not because of the statement."""
    return sqlstate(error) in _OF_THE_SERVER


def is_read_only(error: BaseException) -> bool:
    return sqlstate(error) == _READ_ONLY


def sqlstate(error: BaseException) -> str:
    return _code(error) if isinstance(error, asyncpg.PostgresError) else ""


def store_fault(error: Exception, name: str) -> StoreError:
    """Return the StoreError for an error of the driver. The work that failed has written nothing.

    `name` is the name of the database, without a password.
    """
    if _is_about_values(error):
        return CommitRefused(f"Postgres cannot hold a value: {error}", database=name)
    code = sqlstate(error)
    if code in _REFUSED or code[:2] in _REFUSED:
        return CommitRefused(f"{name} refused the write: {error}", database=name)
    if (advice := _closed(error, code)) is not None:
        return StoreMisconfigured(f"{name}: {advice} ({error})", database=name)
    if code in _CORRUPT:
        return StoreBroken(f"{name} is damaged ({error}); restore it from a backup", database=name)
    if not code or code in _PASSING or code[:2] in _PASSING:
        what = f"{error}" or type(error).__name__
        return StoreBusy(f"{name} {_passing(error)}; nothing was written ({what})", database=name)
    return StoreMisconfigured(
        f"{name} has not the tables that Perdure made ({error}); restore them from a backup, or give Perdure a schema"
        " of its own",
        database=name,
    )


def _closed(error: Exception, code: str) -> str | None:
    """If somebody must act before the database accepts connections, return what to do. Otherwise return None."""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return "the URL, or a PG… variable of the environment, asks for something that is not available; correct it"
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            "its certificate is not trusted; name the file of the authority that signed it with sslrootcert=…,"
            " and the host as the certificate does"
        )
    if "unsupported startup parameter" in str(error):
        return "this is PgBouncer; say so with pgbouncer=true in the URL, and give a way around it with direct=…"
    if isinstance(error, ConnectionError) and REFUSES_TLS in str(error):
        return "it has no TLS, and sslmode asks for it; turn `ssl` on in the server, or use sslmode=prefer"
    return _CLOSED.get(code) or _CLOSED.get(code[:2])


def _passing(error: Exception) -> str:
    if (short_of := _SHORT_OF.get(sqlstate(error))) is not None:
        return short_of
    if isinstance(error, socket.gaierror):
        return "has a host that nobody knows; check its name in the URL or PGHOST"
    if isinstance(error, ConnectionRefusedError | FileNotFoundError) or "Connect call failed" in str(error):
        return "could not be reached; see that the server runs, and check host and port"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "is a standby that cannot be written to, or has no other host; wait for a primary, or name one"
    return "could not be reached, or was too busy"


def _is_about_values(error: BaseException) -> bool:
    """Return whether asyncpg could not encode a value: a lone surrogate, or an integer of more than 64 bits."""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return False
    return isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)


def _code(error: asyncpg.PostgresError) -> str:
    return getattr(error, "sqlstate", None) or ""
