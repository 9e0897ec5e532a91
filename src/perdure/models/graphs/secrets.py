"""Secrets, such as keys of servers. Definitions contain only their names. Steps look up the values. No definition,
journal, log or error contains a secret.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlsplit

from perdure.errors import HostDenied, Misuse, SecretNotFound
from perdure.models.functions.context import current_step
from perdure.values.arguments import checked

_PREFIX: Final = "PERDURE_SECRET_"
_SHOWN: Final = "[secret]"
_KNOWN_MAX: Final = 1_000
_TALKATIVE: Final = (
    "httpx",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore.http2",
    "httpcore.proxy",
    "httpcore.socks",
    "httpx2",
    "httpcore2",
    "mcp.client.stdio",
    "mcp.client.streamable_http",
)


@checked
class Secrets:
    """The provider of an engine's secrets. By default, secrets come from the environment of the engine's process.

    Only environment variables that begin with PERDURE_SECRET_ are used. For example, the secret OPENAI_API_KEY is in
    PERDURE_SECRET_OPENAI_API_KEY. You can allow other names: `Secrets(names=["OPENAI_API_KEY"])`. You can bind a secret
    to hosts, so that it is sent to no other host: `Secrets(hosts={"OPENAI_API_KEY": ["api.openai.com"]})`, or in the
    environment PERDURE_SECRET_OPENAI_API_KEY_HOSTS=api.openai.com.

    To use your own provider, write a subclass and pass it as a resource: `Engine(resources={Secrets: Vault})`.
    """

    _names: Collection[str] = ()
    _hosts: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self, *, names: Collection[str] = (), hosts: Mapping[str, Sequence[str]] | None = None) -> None:
        self._names = frozenset(names)
        self._hosts = dict(hosts or {})

    async def get(self, name: str) -> str | None:
        """Return the secret with this name, or None if it does not exist.

        Every attempt of a step calls this method, so a new secret is used at once. An exception fails only this
        attempt, unless it is Misuse or NonRetryable.
        """
        return _variable(name if name in self._names else f"{_PREFIX}{name}")

    async def hosts(self, name: str) -> Sequence[str] | None:
        """Return the hosts to which a secret may be sent. None means all hosts that nodes may connect to."""
        if name in self._hosts:
            return self._hosts[name]
        listed = _variable(f"{_PREFIX}{name}_HOSTS")
        return None if listed is None else [host.strip().lower() for host in listed.split(",")]


def _variable(name: str) -> str | None:
    """Return the value of an environment variable. Return None if the name has a lone surrogate, which the system
    cannot represent.
    """
    try:
        return os.environ.get(name)
    except UnicodeEncodeError:
        return None


_ENVIRONMENT: Final = Secrets()


async def secret(name: str, place: str, url: str | None) -> str:
    """Return a secret that a step sends to `url`. With None, the secret is passed to a program. Raises SecretNotFound.
    Raises HostDenied if the secret must not be sent to this host, and Misuse if it cannot be part of a header.
    """
    try:
        provider = current_step().resource(Secrets)
    except Misuse:
        provider = _ENVIRONMENT
    found = await provider.get(name)
    value = "" if found is None else found.strip()
    if not value:
        raise SecretNotFound(
            f"{place}: there is no secret {name!r}; set {_PREFIX}{name} in the environment of the engine's process, "
            f"have {name} itself given out with resources={{Secrets: lambda: Secrets(names=[{name!r}])}}, or give the "
            "engine another provider",
            name=name,
        )
    hosts = await provider.hosts(name)
    if hosts is not None:
        host = (urlsplit(url).hostname or "") if url is not None else "a program"
        if host not in hosts:
            message = f"{place}: the secret {name!r} is for {', '.join(hosts)} only, and is not sent to {host!r}"
            raise HostDenied(message, host=host)
    if not value.isascii() or not value.isprintable():
        # Otherwise the library would raise an error that shows the secret in its message.
        raise Misuse(f"{place}: the secret {name!r} has characters that no header can have; is it the right one?")
    _keep_out_of_logs(value)
    return value


class _Hiding(logging.Filter):
    """Removes secrets from the log messages of httpx and httpcore. At DEBUG, these libraries log the headers of
    answers. Some servers repeat the headers of the request there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, None] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        shown = veiled(said, self.known)
        if shown != said:
            record.msg, record.args = shown, ()
        return True


_HIDING: Final = _Hiding()


def _keep_out_of_logs(value: str) -> None:
    if value not in _HIDING.known:
        while len(_HIDING.known) >= _KNOWN_MAX:
            del _HIDING.known[next(iter(_HIDING.known))]
        _HIDING.known[value] = None
        for name in _TALKATIVE:
            logging.getLogger(name).addFilter(_HIDING)


def veiled(value: Any, secrets: Collection[str]) -> Any:
    """Return a JSON value or a text without these secrets. They are also removed in the forms that they have in URLs
    and in JSON.
    """
    forms = {form for one in secrets for form in (one, quote(one, safe=""), one.replace("/", "\\/"))}
    return _veiled(value, sorted(forms, key=len, reverse=True)) if forms else value


def _veiled(value: Any, forms: Sequence[str]) -> Any:
    if isinstance(value, str):
        for form in forms:
            value = value.replace(form, _SHOWN)
        return value
    if isinstance(value, list):
        return [_veiled(one, forms) for one in value]
    if isinstance(value, dict):
        return {_veiled(key, forms): _veiled(one, forms) for key, one in value.items()}
    return value


class Veil:
    """Removes a secret from the answers of servers. In a text that arrives in pieces, the secret may be split. So a
    possible beginning of the secret is kept back until the next piece.
    """

    __slots__ = ("_held", "_secret")

    def __init__(self, secret: str | None) -> None:
        self._secret = secret
        self._held = ""

    def over(self, text: str) -> str:
        """Return a whole text without the secret."""
        return text if self._secret is None else text.replace(self._secret, _SHOWN)

    def piece(self, text: str) -> str:
        """Return the part of the text so far that can be shown."""
        if self._secret is None:
            return text
        text = self.over(self._held + text)
        longest = min(len(self._secret) - 1, len(text))
        held = next((n for n in range(longest, 0, -1) if text.endswith(self._secret[:n])), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """Return the part that was kept back, when no more pieces follow."""
        held, self._held = self._held, ""
        return held
