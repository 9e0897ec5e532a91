"""Secrets: definitions name them, steps get them when they run; no definition, journal, log or error has them."""

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
    """Where an engine's secrets come from: the environment of its process, unless it has another provider.

    Of the environment, only variables that begin with PERDURE_SECRET_ are given out: the secret OPENAI_API_KEY is in
    PERDURE_SECRET_OPENAI_API_KEY. Others are those that are named: `Secrets(names=["OPENAI_API_KEY"])`. A secret may be
    bound to hosts: `Secrets(hosts={"OPENAI_API_KEY": ["api.openai.com"]})`, or in the environment
    PERDURE_SECRET_OPENAI_API_KEY_HOSTS=api.openai.com. It is then sent to no other.

    A provider is a subclass, handed in as a resource: `Engine(resources={Secrets: Vault})`.
    """

    _names: Collection[str] = ()
    _hosts: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self, *, names: Collection[str] = (), hosts: Mapping[str, Sequence[str]] | None = None) -> None:
        self._names = frozenset(names)
        self._hosts = dict(hosts or {})

    async def get(self, name: str) -> str | None:
        """The secret of this name, None if there is none. Asked for in every attempt of a step that needs it, so that a
        new one counts at once. What it raises, other than Misuse and NonRetryable, fails only that attempt."""
        return _variable(name if name in self._names else f"{_PREFIX}{name}")

    async def hosts(self, name: str) -> Sequence[str] | None:
        """The hosts that a secret may be sent to; None: all that nodes may connect to."""
        if name in self._hosts:
            return self._hosts[name]
        listed = _variable(f"{_PREFIX}{name}_HOSTS")
        return None if listed is None else [host.strip().lower() for host in listed.split(",")]


def _variable(name: str) -> str | None:
    """A variable of the environment. None is named with what the system cannot write: half a character."""
    try:
        return os.environ.get(name)
    except UnicodeEncodeError:
        return None


_ENVIRONMENT: Final = Secrets()


async def secret(name: str, place: str, url: str | None) -> str:
    """A secret, in a step, to be sent to `url` (None: to a program). Raises SecretNotFound; HostDenied if it may not be
    sent there; Misuse if it could not stand in a header."""
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
        # Whoever else found that out would show it in the message.
        raise Misuse(f"{place}: the secret {name!r} has characters that no header can have; is it the right one?")
    _keep_out_of_logs(value)
    return value


class _Hiding(logging.Filter):
    """Takes secrets out of what httpx and httpcore log: at DEBUG they show the headers of answers, in which some
    servers repeat those of requests."""

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
    """A value of JSON's types, or a text, without these secrets, also as they stand in addresses and in JSON."""
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
    """Keeps a secret out of what others send back. A text that comes in pieces may have it in several of them, so what
    could be its beginning is held back until the next one."""

    __slots__ = ("_held", "_secret")

    def __init__(self, secret: str | None) -> None:
        self._secret = secret
        self._held = ""

    def over(self, text: str) -> str:
        """A whole text without it."""
        return text if self._secret is None else text.replace(self._secret, _SHOWN)

    def piece(self, text: str) -> str:
        """The next piece, as far as it can be shown."""
        if self._secret is None:
            return text
        text = self.over(self._held + text)
        longest = min(len(self._secret) - 1, len(text))
        held = next((n for n in range(longest, 0, -1) if text.endswith(self._secret[:n])), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """What was held back, when there are no more pieces."""
        held, self._held = self._held, ""
        return held
