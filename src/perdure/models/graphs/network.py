"""The hosts that nodes may connect to. A URL in a definition or in a run's data must not reach private services.

A name is looked up once, the address is checked, and the node connects to that address. A second look-up could return
another address.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import os
import socket
import zlib
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

from perdure.errors import HostDenied, Misuse
from perdure.models.functions.context import current_step
from perdure.values.arguments import checked

ALLOW_VARIABLE: Final = "PERDURE_NETWORK_ALLOW"
DENY_VARIABLE: Final = "PERDURE_NETWORK_DENY"
ENCODINGS: Final = "gzip, deflate"  # the encodings that `read_bounded` can decode

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Range = ipaddress.IPv4Network | ipaddress.IPv6Network

# Ranges with a special purpose. Early releases of Python 3.11 to 3.13 take them for public ranges.
_SPECIAL: Final = tuple(
    map(ipaddress.ip_network, ("192.0.0.0/24", "64:ff9b:1::/48", "2001::/23", "2002::/16", "3fff::/20", "5f00::/16"))
)
_AROUND_IPV4: Final = (
    ipaddress.IPv6Network("::/96"),  # IPv4-compatible addresses
    ipaddress.IPv6Network("::ffff:0:0/96"),  # IPv4-mapped addresses
    ipaddress.IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated addresses
    ipaddress.IPv6Network("64:ff9b::/96"),  # NAT64 addresses
)


@checked
class Network:
    """The hosts that `http`, `llm` and `mcp` nodes may connect to. Pass it to an engine as a resource:
    `Engine(resources={Network: lambda: Network(allow=["10.0.0.0/8"])})`.

    `allow` and `deny` are lists of host names (`*.example.org` means all names below), addresses, and ranges
    (`10.0.0.0/8`). Nodes never connect to a denied host. Nodes connect to loopback, link-local, private, multicast and
    reserved addresses only if you allow the address, or the name that led to it. An IPv6 address that stands for an
    IPv4 address (mapped, NAT64, 6to4) counts as that IPv4 address. `only_allowed` denies every host that is not in
    `allow`.

    Without this resource, an engine uses the lists in PERDURE_NETWORK_ALLOW and PERDURE_NETWORK_DENY. Their items are
    separated by commas.
    """

    def __init__(self, *, allow: Iterable[str] = (), deny: Iterable[str] = (), only_allowed: bool = False) -> None:
        self._allow = _Hosts(allow)
        self._deny = _Hosts(deny)
        self._only_allowed = only_allowed

    def check(self, host: str, found: _Address | None) -> None:
        """Raise HostDenied unless nodes may connect to this address of the host. `found` is None if a proxy looks up
        the address.
        """
        inner = None if found is None else _unwrapped(found)
        if self._deny.has(host, found) or self._deny.has(host, inner):
            raise HostDenied(f"this engine does not connect to {host!r}: it is denied", host=host)
        if self._allow.has(host, inner):
            return
        if self._only_allowed:
            raise HostDenied(f"this engine does not connect to {host!r}: it is not among those allowed", host=host)
        if inner is not None and not _is_public(inner):
            raise HostDenied(
                f"this engine does not connect to {host!r}: its address {found} is on this machine, in a private "
                f"network, or reserved. If that is meant, allow it: Network(allow=[{host!r}]), or "
                f"{ALLOW_VARIABLE}={host}",
                host=host,
            )

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, if nodes may connect to all of them. Raises HostDenied, OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        for address in addresses:
            self.check(host, _address(address))
        return addresses


class _Hosts:
    """A list of names, addresses and ranges. Raises Misuse for anything else."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._names: set[str] = set()
        self._above: list[str] = []
        self._ranges: list[_Range] = []
        for entry in entries:
            text = entry.strip().lower().rstrip(".")
            if not text or "://" in text or any(character.isspace() for character in text):
                raise Misuse(f"{entry!r} is no host: write a name, *.a-name, an address or a range such as 10.0.0.0/8")
            try:
                one = ipaddress.ip_network(text, strict=False)
                is_single = one.num_addresses == 1
                self._ranges.append(ipaddress.ip_network(_unwrapped(one.network_address)) if is_single else one)
            except ValueError:
                self._add_name(text, entry)

    def _add_name(self, text: str, entry: str) -> None:
        above, name = text.startswith("*."), text.removeprefix("*.")
        if "*" in name or "/" in name:
            raise Misuse(f"{entry!r} is no host: a * stands only at the beginning, as in *.a-name")
        try:
            name = _plain(name)
        except UnicodeError as error:
            raise Misuse(f"{entry!r} is no host: {error}") from None
        if above:
            self._above.append(f".{name}")
        else:
            self._names.add(name)

    def has(self, host: str, found: _Address | None) -> bool:
        try:
            name = _plain(host)
        except UnicodeError:
            name = host
        if name in self._names or any(name.endswith(above) for above in self._above):
            return True
        return found is not None and any(found in one for one in self._ranges if one.version == found.version)


def _address(text: str) -> _Address:
    return ipaddress.ip_address(text.partition("%")[0])


def _literal(host: str) -> _Address | None:
    """Return the address that a host stands for. Every form that a look-up accepts is read, such as 2130706433 or
    0x7f.1. Return None for a name.
    """
    text = host.rstrip(".")
    try:
        return _address(text)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(text))
    except (OSError, ValueError):
        return None


def _plain(name: str) -> str:
    """Return a name in the form in which it is looked up. Raises UnicodeError if the name cannot be looked up."""
    text = name.lower().rstrip(".")
    if text.isascii():
        return text
    try:
        idna: Any = importlib.import_module("idna")
    except ImportError:  # `idna` comes with httpx. Without httpx, no node connects anywhere.
        return text
    return str(idna.encode(text).decode("ascii")).rstrip(".")


def _unwrapped(found: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(found, ipaddress.IPv4Address):
        return found
    if found.sixtofour is not None:
        return found.sixtofour
    # :: and ::1 look like IPv4-compatible addresses, but are not.
    if int(found) > 1 and any(found in one for one in _AROUND_IPV4):
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found


def _is_public(found: _Address) -> bool:
    is_site_local = isinstance(found, ipaddress.IPv6Address) and found.is_site_local
    is_special = any(found in one for one in _SPECIAL)
    return found.is_global and not (found.is_multicast or found.is_reserved or is_site_local or is_special)


def network() -> Network:
    """Return the network rules of this step's engine. Raises Misuse if the environment variables are invalid."""
    try:
        return current_step().resource(Network)
    except Misuse:
        return Network(allow=_listed(ALLOW_VARIABLE), deny=_listed(DENY_VARIABLE))


def _listed(variable: str) -> list[str]:
    return [entry for entry in os.environ.get(variable, "").split(",") if entry.strip()]


def guard(client: Any, url: str) -> Any:
    """Make a client of httpx (or httpx2) connect only to hosts that this step's engine allows. Raises HostDenied if the
    host is not allowed.

    With a proxy in the environment, the host is checked as it is written, as a name or an address, because the proxy
    looks up the name. Raises InvalidURL of the library.
    """
    allowed = network()
    # This is the host as the library reads it and passes it to a proxy. The proxy may decode escapes.
    host = unquote(_library(client).URL(url).raw_host.decode("ascii"))
    allowed.check(host, _literal(host))
    pool = client._transport._pool
    pool._network_backend = _Guarded(pool._network_backend, allowed)
    return client


class _Guarded:
    """A network backend of httpcore that checks an address before it connects."""

    def __init__(self, inner: Any, allowed: Network) -> None:
        self._inner = inner
        self._allowed = allowed

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> Any:
        try:
            addresses = await self._allowed.addresses(host, port)
        except (OSError, UnicodeError) as error:
            # The library must not look up the name itself, because nothing would check that address.
            raise _library(self._inner).ConnectError(str(error)) from error
        failed: Exception | None = None
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, *args, **options)
            except Exception as error:  # noqa: BLE001 - of whichever library it is
                failed = error
        assert failed is not None
        raise failed

    async def connect_unix_socket(self, path: str, *_args: Any, **_options: Any) -> Any:
        raise HostDenied(f"this engine does not connect to the socket {path!r}", host=path)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


def _library(of: Any) -> Any:
    """Return the package that an object comes from. There are two packages of httpx, and two of httpcore."""
    return importlib.import_module(type(of).__module__.partition(".")[0])


class AnswerTooLarge(Exception):
    """An answer has too many bytes, or its compression has no bound for the size."""


async def read_bounded(answer: Any, bytes_max: int) -> bytes:
    """Read and decompress an answer that httpx streams. At most `bytes_max` bytes are in memory, even if the answer is
    highly compressed. Raises AnswerTooLarge.
    """
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise AnswerTooLarge(f"its encoding is {encoding!r:.40}, and only {ENCODINGS} can be unpacked here")
    unpack = None if encoding in ("identity", "") else zlib.decompressobj(zlib.MAX_WBITS | 32)
    content = bytearray()
    async for packed in answer.aiter_raw():
        if unpack is None:
            content += packed
        else:
            try:
                content += unpack.decompress(packed, bytes_max + 1 - len(content))
            except zlib.error as error:
                raise AnswerTooLarge(f"it cannot be unpacked: {error}") from None
        if len(content) > bytes_max or (unpack is not None and unpack.unconsumed_tail):
            raise AnswerTooLarge(f"it has more than {bytes_max:,} bytes")
    return bytes(content)


__all__ = ["ENCODINGS", "AnswerTooLarge", "Network", "guard", "network", "read_bounded"]
