"""The address to which a request is attributed. It is the address of the connection or, behind a trusted proxy, the
address of the client.

This address is used only for rate limits. Only the connection decides whether a request comes from this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from perdure.errors import InvalidArguments

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HEADER: Final = b"x-forwarded-for"
_HOPS_MAX: Final = 20  # the number of proxies that a request may have passed
_IPV6_BITS: Final = 64  # A household or a machine gets a prefix of this length, and can use every address in it.


class Proxies:
    """The trusted proxies. They are addresses or networks, such as 10.0.0.7 or 10.0.0.0/8. By default no proxy is
    trusted. Raises InvalidArguments.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        if isinstance(trusted, str):
            raise InvalidArguments("trusted_proxies must be a list of addresses and networks, not a str")
        self._trusted = tuple(_network(one) for one in trusted)

    def client(self, peer: str | None, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Return the address to which a request is attributed. Behind trusted proxies, this is the address of the
        client. Otherwise it is the address of the connection. An IPv6 address is cut to its first 64 bits.
        """
        found = _address(peer or "")
        if found is None:
            return str(peer)
        if self._is_trusted(found):
            texts = b",".join(value for name, value in headers if name.lower() == _HEADER).decode("latin-1").split(",")
            # Each proxy appends the address that has connected to it. So the rightmost addresses belong to the proxies
            # next to this server. The addresses are read from the right. All addresses after the first untrusted
            # address may be forged.
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
            f"a trusted proxy must be an address or a network, such as 10.0.0.7 or 10.0.0.0/8, not {text!r:.80}"
        ) from None


def _address(text: str) -> Address | None:
    """Return the address in a text, or None. Some proxies add a port or a zone; these are ignored."""
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
