"""Chat completions: one HTTP request to a model's server, in OpenAI's format, and its answer.

Every error becomes an LlmFailed or one of its subclasses. Some subclasses are not retried. Messages of servers are
shown without the secret, because some servers repeat the secret.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from perdure.errors import LlmFailed, LlmRefused, LlmTruncated
from perdure.models.graphs.network import guard
from perdure.models.graphs.secrets import Veil, secret

if TYPE_CHECKING:
    import httpx

OPENAI: Final = "https://api.openai.com/v1"
BASE_URL_VARIABLE: Final = "OPENAI_BASE_URL"

_CONNECT_TIMEOUT_S: Final = 30.0
_ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
_ANSWER_CHARS_MAX: Final = 8 * 1024 * 1024
_LINE_BYTES_MAX: Final = 4 * 1024 * 1024
_ERROR_BYTES_MAX: Final = 64 * 1024
_SHOWN_CHARS: Final = 500
_MAY_PASS: Final = frozenset({408, 409, 425, 429})  # these statuses, and all statuses from 500 on, may pass
_TOO_LONG: Final = ("context_length", "context length", "context window", "maximum context", "too many tokens")


class Answer(Struct, frozen=True):
    text: str
    model: str
    usage: dict[str, Any] | None


class _Words(Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(Struct):
    message: _Words | None = None
    delta: _Words | None = None
    finish_reason: str | None = None


class _Body(Struct):
    """An answer, or a piece of an answer."""

    choices: list[_Choice] = field(default_factory=list)
    model: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_BODY: Final = msgspec.json.Decoder(_Body)

OnPiece = Callable[[str], Awaitable[None]]


def wrong_with_url(url: str) -> str | None:
    """Return the problem with an endpoint's URL, or None."""
    try:
        parts = urlsplit(url)
        is_there = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_there, parts = False, urlsplit("")
    if not is_there:
        return f"an address begins with http:// or https://, as {OPENAI} does"
    if parts.username is not None or parts.query or parts.fragment:
        return "an address has no user, password or query in it; name a secret instead"
    return None


class Endpoint:
    """The server of a model. `stall_s` is the longest time for which the server may send nothing."""

    def __init__(self, *, base_url: str | None, model: str, secret: str | None, stall_s: float, place: str) -> None:
        self.place = place
        self.model = model
        self._base_url = base_url
        self._secret = secret
        self._stall_s = stall_s

    async def ask(self, body: dict[str, Any], on_piece: OnPiece | None) -> Answer:
        """Send a request and return the answer. This must be called in a step. With `on_piece`, request a stream, and
        pass each piece of the answer to `on_piece` when it arrives. Raises LlmFailed and its subclasses,
        SecretNotFound, Misuse.
        """
        base_url = self._base_url or os.environ.get(BASE_URL_VARIABLE) or OPENAI
        if (wrong := wrong_with_url(base_url)) is not None:
            raise LlmRefused(f"{self.place}: {BASE_URL_VARIABLE} in the environment is wrong: {wrong}")
        key = None if self._secret is None else await secret(self._secret, self.place, base_url)
        return await _Request(self, base_url, key, self._secret, self._stall_s).send(body, on_piece)


class _Request:
    def __init__(self, to: Endpoint, base_url: str, key: str | None, secret_name: str | None, stall_s: float) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._about = f"{to.place}: POST {self._url} (model {to.model!r})"
        self._model = to.model
        self._key = key
        self._secret_name = secret_name
        self._stall_s = stall_s
        self._veil = Veil(key)

    async def send(self, body: dict[str, Any], on_piece: OnPiece | None) -> Answer:
        import httpx

        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        timeout = httpx.Timeout(self._stall_s, connect=min(self._stall_s, _CONNECT_TIMEOUT_S))
        # No error of httpx becomes a cause, because it refers to the request, which has the secret.
        try:
            async with (
                guard(httpx.AsyncClient(timeout=timeout, verify=_trust()), self._url) as client,
                client.stream("POST", self._url, json=body, headers=headers) as answer,
            ):
                if answer.status_code != 200:
                    raise self._refused(answer, await _beginning(answer))
                if on_piece is not None and "event-stream" in answer.headers.get("content-type", ""):
                    return await self._listen(answer, on_piece)
                return await self._read(answer, on_piece)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._failed(f"cannot connect: {self._shown(str(error))}; is base_url right, and is it up?") from None
        except httpx.TimeoutException:
            raise self._failed(
                f"the server sent nothing for {self._stall_s:g} s; if the model takes longer, give the node a longer "
                "stall_timeout, or a stream"
            ) from None
        except httpx.HTTPError as error:
            raise self._failed(f"the connection broke: {self._shown(str(error)) or type(error).__name__}") from None
        except httpx.InvalidURL:
            raise LlmRefused(f"{self._about}: this is no address; put base_url right") from None

    async def _read(self, response: httpx.Response, on_piece: OnPiece | None) -> Answer:
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > _ANSWER_BYTES_MAX:
                raise self._refusal(f"the answer has more than {_ANSWER_BYTES_MAX:,} bytes; ask for less")
        body = self._decoded(bytes(content))
        choice = body.choices[0] if body.choices else _Choice()
        words = choice.message or _Words()
        text = self._veil.over(words.content or "")
        if on_piece is not None and text:
            await on_piece(text)
        self._check_end(choice.finish_reason, words.refusal, text)
        if words.content is None:
            raise self._failed("the answer is malformed: there is no text in it")
        return self._answer(text, body.model, body.usage)

    async def _listen(self, response: httpx.Response, on_piece: OnPiece) -> Answer:
        pieces: list[str] = []
        size = 0
        refusal = ""
        model: str | None = None
        usage: dict[str, Any] | None = None
        finish: str | None = None
        is_done = False

        async def take(piece: str) -> None:
            nonlocal size
            size += len(piece)
            if size > _ANSWER_CHARS_MAX:
                raise self._refusal(f"the answer has more than {_ANSWER_CHARS_MAX:,} characters; ask for less")
            if piece:
                pieces.append(piece)
                await on_piece(piece)

        async with aclosing(self._events(response)) as events:
            async for data in events:
                if data == b"[DONE]":
                    is_done = True
                    break
                body = self._decoded(data)
                model, usage = body.model or model, body.usage or usage
                for choice in body.choices[:1]:
                    finish = choice.finish_reason or finish
                    if choice.delta is not None:
                        refusal += choice.delta.refusal or ""
                        await take(self._veil.piece(choice.delta.content or ""))
        await take(self._veil.rest())
        if not is_done and finish is None:
            raise self._failed("the stream ended before the answer did")
        text = "".join(pieces)
        self._check_end(finish, refusal, text)
        return self._answer(text, model, usage)

    async def _events(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Yield the data of the events of a stream."""
        held = b""
        async for chunk in response.aiter_bytes():
            *lines, held = (held + chunk).split(b"\n")
            if len(held) > _LINE_BYTES_MAX:
                raise self._failed(f"the stream is malformed: a line has more than {_LINE_BYTES_MAX:,} bytes")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()
        if held.startswith(b"data:"):
            yield held[5:].strip()

    def _decoded(self, content: bytes) -> _Body:
        try:
            body = _BODY.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            shown = self._shown(content[:_ERROR_BYTES_MAX].decode(errors="replace"))
            raise self._failed(f"the answer is malformed: {self._shown(str(error))}: {shown}") from None
        if body.error is not None:
            raise self._failed(f"the server broke off: {self._shown(_message_in(body.error)[0])}")
        return body

    def _check_end(self, finish: str | None, refusal: str | None, text: str) -> None:
        if refusal:
            raise self._refusal(f"the model declined: {self._shown(refusal)}")
        if finish == "length":
            raise LlmTruncated(
                f"{self._about}: the answer was cut off after {len(text):,} characters, because it reached the "
                "maximum number of tokens; set a higher max_tokens on the node, or ask for a shorter answer",
                status=200,
                output=text[:_SHOWN_CHARS],
            )
        if finish == "content_filter":
            raise self._refusal("the server's content filter took the answer back; change the prompt")

    def _answer(self, text: str, model: str | None, usage: dict[str, Any] | None) -> Answer:
        return Answer(text, self._veil.over(model or self._model), None if usage is None else _numbers(usage))

    # Errors.

    def _refused(self, response: httpx.Response, content: bytes) -> LlmFailed:
        status = response.status_code
        try:
            found = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = content.decode(errors="replace")
        message, code = _message_in(found)
        advice = self._advice(status, message, code)
        about = f"{self._about} was answered with {status}: {self._shown(message) or 'nothing said'}{advice}"
        is_passing = (status in _MAY_PASS and code != "insufficient_quota") or status >= 500
        if is_passing:
            return LlmFailed(about, status=status, retry_after_s=_retry_after_s(response))
        return LlmRefused(about, status=status)

    def _advice(self, status: int, message: str, code: str) -> str:
        said = f"{code} {message}".lower()
        if status in (401, 403):
            if self._secret_name is None:
                return "; it wants a key: name one with secret=…"
            return f"; is the secret {self._secret_name!r} the right one, and may it use this model?"
        if status in (400, 413, 422) and (status == 413 or any(words in said for words in _TOO_LONG)):
            return "; shorten the prompt, or take a model with a longer context"
        if status == 404:
            return f"; is there a model {self._model!r} here, and is base_url right?"
        if 300 <= status < 400:
            return "; redirects are not followed: put base_url right"
        if code == "insufficient_quota":
            return "; the account has nothing left"
        if 400 <= status < 500 and status not in _MAY_PASS:
            return "; does this server take all that the node sends?"
        return ""

    def _failed(self, what: str) -> LlmFailed:
        return LlmFailed(f"{self._about}: {what}")

    def _refusal(self, what: str) -> LlmRefused:
        return LlmRefused(f"{self._about}: {what}", status=200)

    def _shown(self, text: str) -> str:
        shown = self._veil.over(text).strip()
        return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"


async def _beginning(response: httpx.Response) -> bytes:
    content = b""
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > _ERROR_BYTES_MAX:
            break
    return content[:_ERROR_BYTES_MAX]


def _message_in(found: Any) -> tuple[str, str]:
    """Return the message and the code of an error. Servers use several forms of errors."""
    if isinstance(found, dict):
        inner = found.get("error", found)
        if isinstance(inner, dict):
            message = inner.get("message") or inner.get("detail") or inner
            return str(message), str(inner.get("code") or inner.get("type") or "")
        return str(inner), ""
    return str(found), ""


def _retry_after_s(response: httpx.Response) -> float | None:
    """Return the pause in seconds that the server asks for. The server gives seconds, milliseconds, or a date by its
    own clock.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        said = response.headers.get(name)
        if said is None:
            continue
        try:
            return max(0.0, float(said) * unit)
        except ValueError:
            pass
        try:
            until = parsedate_to_datetime(said)
            date = response.headers.get("date")
            now = datetime.now(UTC) if date is None else parsedate_to_datetime(date)
            return max(0.0, (until - now).total_seconds())
        except (ValueError, TypeError):
            continue
    return None


def _numbers(usage: dict[str, Any]) -> dict[str, Any]:
    """Return only the numbers of a usage object. Everything else that the server adds is left out."""
    kept: dict[str, Any] = {}
    for name, value in usage.items():
        if isinstance(value, dict):
            kept[name] = _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            kept[name] = value
    return kept


def added(usage: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the sum of the usage of two requests."""
    if usage is None or more is None:
        return more if usage is None else usage
    total = dict(usage)
    for name, value in more.items():
        known = total.get(name)
        if isinstance(value, dict):
            total[name] = added(known if isinstance(known, dict) else {}, value)
        else:
            total[name] = value + (known if isinstance(known, int | float) else 0)
    return total


@cache
def _trust() -> ssl.SSLContext:
    """Return the TLS context that all requests share, because creating a context takes a while."""
    import httpx

    return httpx.create_ssl_context()
