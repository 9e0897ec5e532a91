"""Whose address a request has: that of the connection, or, behind a proxy that is trusted, the client's.

An address only says how fast somebody may try. Whether a request comes from this machine is always a matter of the
connection itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from perdure.errors import InvalidArguments

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HEADER: Final = b"x-forwarded-for"
_HOPS_MAX: Final = 20  # of a chain of proxies
_IPV6_BITS: Final = 64  # What one household or machine is given: it can use any address in it.


class Proxies:
    """The proxies whose word counts: addresses or networks, as 10.0.0.7 or 10.0.0.0/8. None unless given. Raises
    InvalidArguments."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        if isinstance(trusted, str):
            raise InvalidArguments("trusted_proxies is a list of addresses and networks, not a text")
        self._trusted = tuple(_network(one) for one in trusted)

    def client(self, peer: str | None, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Who counts as one caller: the client behind the proxies that are trusted, or else whoever has connected.
        Addresses of IPv6 count by their first 64 bits."""
        found = _address(peer or "")
        if found is None:
            return str(peer)
        if self._is_trusted(found):
            texts = b",".join(value for name, value in headers if name.lower() == _HEADER).decode("latin-1").split(",")
            # Each proxy adds who has connected to it, so what is on the right was said by those nearest to us. What is
            # left of the first one that is not trusted, anybody may have made up.
            for text in texts[: -_HOPS_MAX - 1 : -1]:
                if (said := _address(text.strip())) is None:
                    break
                found = said
                if not self._is_trusted(found):
                    break
        if found.version == 6:
            return str(ipaddress.ip_network((found, _IPV6_BITS), strict=False))
        return str(found)

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._trusted if network.version == address.version)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidArguments(
            f"a trusted proxy is an address or a network, as 10.0.0.7 or 10.0.0.0/8, not {text!r:.80}"
        ) from None


def _address(text: str) -> Address | None:
    """An address, also with a port or a zone, as some proxies write it."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if found.version == 6 else found


__all__ = ["Proxies"]
