"""TLS in the server itself. Certificates are checked before the server listens, and sockets in a handshake count as
connections.

Uvicorn counts a connection only after its TLS handshake. Without further measures, sockets that begin a handshake and
then send nothing would escape all limits. Here a socket counts from the beginning, and its handshake has the same time
limit as the head of a request.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from perdure.errors import Misuse
from perdure.http.connections import Connections
from perdure.http.private_files import check_private
from perdure.values.arguments import check_fields

log = logging.getLogger("perdure.http")

_WARN_BEFORE: Final = timedelta(days=14)
_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"


class Tls(Struct, frozen=True, kw_only=True):
    """Files in PEM format. `certificate` has the server's certificate, followed by the certificates of its issuers.
    `key` has its key.

    With `client_ca`, only clients with a certificate of one of these authorities can connect.
    """

    certificate: str | Path
    key: str | Path
    client_ca: str | Path | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of a server, for TLS 1.2 and newer.

    Raises Misuse, with the name of the file, in these cases. A file is missing, cannot be read, or is not a certificate
    or a key. The key does not belong to the certificate. The certificate is not valid now. Other users can read the
    key.
    """
    certificate, key = Path(tls.certificate), Path(tls.key)
    _check_times(certificate, _read(certificate, "certificate"))
    _read(key, "key")
    check_private(key, "the key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    _load(context, certificate, key)
    if tls.client_ca is not None:
        client_ca = Path(tls.client_ca)
        if _CERTIFICATE not in _read(client_ca, "clients' authorities"):
            raise Misuse(f"{client_ca} has no certificate in PEM format of an authority whose clients may connect")
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise Misuse(f"{client_ca} is not a file of certificates in PEM: {error.reason or error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text("ascii")
    except OSError as error:
        raise Misuse(f"cannot read the {what} {path}: {error.strerror}") from error
    except ValueError as error:
        raise Misuse(f"the {what} {path} is not in PEM format, which is plain text; convert it with openssl") from error


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def no_password() -> str:
        raise Misuse(f"the key {key} is encrypted; decrypt it into a file that only its owner can read")

    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise Misuse(f"the key {key} does not belong to the certificate {certificate}") from error
        raise Misuse(
            f"{certificate} and {key} are not a certificate and a key in PEM format: {error.reason or error}"
        ) from error


def _check_times(path: Path, text: str) -> None:
    """Raise Misuse if a certificate is not valid now. Log a warning if it expires soon."""
    if _CERTIFICATE not in text:
        raise Misuse(f"{path} has no certificate in PEM format")
    first = text[text.index(_CERTIFICATE) :].partition("-----END CERTIFICATE-----")
    try:
        begins, ends = _validity(ssl.PEM_cert_to_DER_cert("".join(first[:2]) + "\n"))
    except (ValueError, IndexError) as error:
        raise Misuse(f"cannot read the certificate in {path}: {error}") from error
    now = datetime.now(UTC)
    if now < begins:
        raise Misuse(f"the certificate {path} is valid from {begins:%Y-%m-%d %H:%M} UTC on; is the clock right?")
    if now > ends:
        raise Misuse(f"the certificate {path} has expired, at {ends:%Y-%m-%d %H:%M} UTC; renew it")
    if ends - now < _WARN_BEFORE:
        log.warning("the certificate %s expires at %s UTC", path, f"{ends:%Y-%m-%d %H:%M}")


def _validity(der: bytes) -> tuple[datetime, datetime]:
    """Return the times from which and until which a certificate is valid (RFC 5280, 4.1). In a certificate, the
    validity comes after the version, the serial number, the algorithm and the issuer.
    """
    _, body, _ = _part(der)
    _, signed, _ = _part(body)
    tag, _, rest = _part(signed)
    if tag != 0xA0:  # The version is left out in certificates of version 1.
        rest = signed
    for _ in range(3):
        _, _, rest = _part(rest)
    _, validity, _ = _part(rest)
    tag, begins, rest = _part(validity)
    other, ends, _ = _part(rest)
    return _time(tag, begins), _time(other, ends)


def _part(der: bytes) -> tuple[int, bytes, bytes]:
    """Return the first value in DER: its tag, its content, and the bytes after it. Raises ValueError."""
    tag, length, start = der[0], der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    if start + length > len(der):
        raise ValueError("it is cut off")
    return tag, der[start : start + length], der[start + length :]


def _time(tag: int, text: bytes) -> datetime:
    form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


class Handshake(asyncio.Protocol):
    """The protocol of a socket until its TLS handshake has ended.

    After that, uvicorn's own protocol gets the socket, as if it were new.

    Uvicorn creates a Handshake for each connection instead of its own protocol.
    """

    _base: type[asyncio.Protocol]
    _connections: Connections
    _context: ssl.SSLContext

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.transport: Any = None
        # needed, because the event loop has only a weak reference to the task
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._connections.opened(self)
        if transport.is_closing():  # The connection is being closed, because there were too many connections.
            self._connections.closed(self)
            return
        self.transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    async def _shake_hands(self) -> None:
        limits = self._connections.limits
        early = _Early()
        secured: Any = None
        try:
            secured = await asyncio.get_running_loop().start_tls(
                self.transport,
                early,
                self._context,
                server_side=True,
                ssl_handshake_timeout=limits.head_s,
                ssl_shutdown_timeout=limits.idle_s,
            )
        except OSError as error:  # Errors of TLS and timeouts are OSErrors too.
            if not self.transport.is_closing() or isinstance(error, ssl.SSLError):
                self._connections.refuse(self, f"TLS handshake failed: {_reason(error)}")
        finally:
            self._connections.closed(self)
        if secured is not None and not early.is_lost:
            early.hand_over(secured, self._base(**self._options))


class _Early(asyncio.Protocol):
    """Keeps data that arrives with the end of a handshake until uvicorn's protocol can read it."""

    def __init__(self) -> None:
        self.is_lost = False
        self._data: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self._data.append(bytes(data))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio gives it this name
        self.is_lost = True

    def hand_over(self, transport: Any, protocol: asyncio.Protocol) -> None:
        """Give the connection, and the data that has arrived, to a protocol."""
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._data:
            if not transport.is_closing():
                protocol.data_received(data)


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or type(error).__name__)


def secured(base: type[asyncio.Protocol], connections: Connections, context: ssl.SSLContext) -> type[asyncio.Protocol]:
    """Return a protocol of uvicorn that uses TLS."""
    members = {"_base": base, "_connections": connections, "_context": context}
    made: type[asyncio.Protocol] = type(f"Tls{base.__name__}", (Handshake,), members)
    return made


__all__ = ["Tls", "secured", "server_context"]
