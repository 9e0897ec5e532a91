"""Addresses of databases: which parts of a URL Perdure reads itself, and which parts it passes to the driver."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import Misuse, StoreBroken

DEFAULT_LEASE_S: Final = 10.0
_LEASE_MIN_S: Final = 0.5
_SILENCE_SHARE: Final = 0.5
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_PORT: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")


class Address(Struct, frozen=True, kw_only=True):
    """The address of a database, and the time after which a silent engine counts as dead."""

    url: str
    name: str  # for messages; has no password
    schema: str
    lease_s: float = DEFAULT_LEASE_S
    is_pooled: bool = False  # whether it goes through PgBouncer in transaction mode
    direct_url: str | None = None  # a URL that does not go through PgBouncer

    @property
    def silence_s(self) -> float:
        """Return how long a transaction may be idle and a socket may be silent."""
        return self.lease_s * _SILENCE_SHARE

    @property
    def direct(self) -> Address:
        """Return the address for connections that need a lasting session. This is the direct address, if the URL has
        one.
        """
        if self.direct_url is None:
            return self
        return replace(self, url=self.direct_url, name=name_of(self.direct_url), is_pooled=False, direct_url=None)

    def __repr__(self) -> str:
        # The repr must not have the password, because tracebacks with values may be logged.
        return f"Address({self.name!r}, schema={self.schema!r}, lease_s={self.lease_s!r})"

    @property
    def urls(self) -> list[str]:
        """Return one URL for each host. With one URL for all hosts, the driver would spend the whole time on the first
        host.
        """
        parts = urlsplit(self.url)
        user, at, hosts = parts.netloc.rpartition("@")
        if "," not in hosts:
            return [self.url]
        return [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]

    def check_files(self) -> None:
        """Raise StoreBroken if a file that the URL names cannot be read. The driver's own error does not name the
        file.
        """
        for option, value in parse_qsl(urlsplit(self.url).query):
            if option in _FILES and not os.access(value, os.R_OK):
                raise StoreBroken(
                    f"{option}={value} cannot be read; correct the URL of {self.name}", database=self.name
                )


def parse(url: str) -> Address:
    """Read a URL. `schema`, `lease`, `pgbouncer` and `direct` are Perdure's options. All other options are passed to
    the driver, or are settings of the server.

    Raises Misuse. The message never shows a password.
    """
    name = name_of(url)
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = options.pop("schema", "perdure")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,49}", schema) or schema.startswith("pg_"):
        raise Misuse(f"{schema!r} cannot be the schema: up to 50 of a-z, 0-9 and _, no digit first, not pg_…", url=name)
    try:
        lease_s = float(options.pop("lease", DEFAULT_LEASE_S))
    except ValueError:
        lease_s = 0.0
    if not _LEASE_MIN_S <= lease_s < float("inf"):
        raise Misuse(f"lease= is a number of seconds, {_LEASE_MIN_S} or more", url=name)
    direct_url = options.pop("direct", None)
    if direct_url is not None and not direct_url.startswith(("postgresql://", "postgres://")):
        raise Misuse(
            "direct= is a whole URL, percent-encoded: direct=postgresql%3A%2F%2Fuser%40host%2Fdatabase", url=name
        )
    if direct_url is not None:
        name_of(direct_url)
    pooled = options.pop("pgbouncer", "false" if direct_url is None else "true")
    if pooled not in ("true", "false"):
        raise Misuse("pgbouncer= is true or false", url=name)
    if service := os.environ.get("PGSERVICE"):
        options.setdefault("service", service)  # The driver knows this option, but ignores the environment variable.
    return Address(
        url=_with_options(url, options),
        name=name,
        schema=schema,
        lease_s=lease_s,
        is_pooled=pooled == "true",
        direct_url=direct_url,
    )


def _with_options(url: str, options: dict[str, str]) -> str:
    query = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in options.items())
    return url.partition("?")[0] + (f"?{query}" if query else "")


def name_of(url: str) -> str:
    """Return the place that a URL names, for messages. It has no user, no password and no options.

    Raises Misuse if the URL has no valid hosts and ports. If the port is not a number, its text is probably the
    beginning of a password.
    """
    scheme, _, rest = url.partition("://")
    place, slash, database = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    user, at, hosts = place.rpartition("@")
    if "@" in user or "@" in database or not all(_PORT.fullmatch(host) for host in hosts.split(",")):
        raise Misuse(
            f"a URL {scheme}://… has no host and port where they should be: {scheme}://user:password@host:port/database;"
            " in a password, write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23 and % as %25"
        )
    if not hosts:
        # If a part is empty, the driver takes it from the environment. A message must name the value that was used.
        hosts = os.environ.get("PGHOST", "")
        port = os.environ.get("PGPORT", "")
        hosts += f":{port}" if hosts and port else ""
    if not database:
        slash, database = ("/", found) if (found := os.environ.get("PGDATABASE", "")) else (slash, database)
    return f"{scheme}://{'…@' if at else ''}{hosts}{slash}{database}"
