"""Nodes that make an HTTP request, as a step."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from perdure.errors import HttpFailed, Misuse
from perdure.models.functions.context import current_step
from perdure.models.functions.define import step
from perdure.models.graphs.kinds.base import Kind, Preparing, kind
from perdure.models.graphs.kinds.function import StepWork
from perdure.models.graphs.network import ENCODINGS, AnswerTooLarge, guard, read_bounded
from perdure.models.graphs.secrets import secret, veiled
from perdure.models.graphs.spec import Name

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S: Final = 60.0
_SHOWN_CHARS: Final = 500
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024

Header = Annotated[str, Meta(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]


@kind
class Http(Kind, frozen=True, kw_only=True, tag="http"):
    """Makes an HTTP request. Its result is {status, headers, body}. If the body is JSON, it is parsed. `url`,
    `headers`, `params` and `body` are expressions, or contain expressions. `body` is sent as JSON.

    `secret` is the name of a secret that is sent as `Authorization: Bearer …`. `secret_headers` maps headers to names
    of secrets; a secret is the whole value of its header. Secrets are looked up when the request is made.

    The attempt fails with HttpFailed if there is no answer, or if the status is 400 or more and `accept` does not list
    it. It is retried as the policy says. All attempts send the same `Idempotency-Key` header.
    """

    url: str
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    accept: list[int] = field(default_factory=list)
    secret: Name | None = None
    secret_headers: dict[Header, Name] = field(default_factory=dict)

    def prepare(self, about: Preparing) -> StepWork:
        self.refuse(about, "input")
        if importlib.util.find_spec("httpx") is None:
            raise Misuse(f"{about.place}: http nodes need httpx; install perdure[graphs]")
        hidden = [*self.secret_headers, *(["Authorization"] if self.secret is not None else [])]
        seen = {name.lower() for name in self.headers}
        for name in hidden:
            if name.lower() in seen:
                raise about.wrong("secret_headers", f"there are two headers {name!r}")
            seen.add(name.lower())
        parts = {
            "method": f"'{self.method}'",
            "url": self.url,
            "headers": self.headers,
            "params": self.params,
            "accept": self.accept,
            "timeout_s": self.timeout or _TIMEOUT_S,
            "secret_names": {name: f"'{found}'" for name, found in self.secret_headers.items()},
            "bearer": None if self.secret is None else f"'{self.secret}'",
        }
        if self.body is not None:
            parts["body"] = self.body
        return StepWork(replace(self, input=parts), about, _request)


@step(name="http")
async def _request(
    method: str,
    url: str,
    headers: dict[str, str],
    params: dict[str, Any],
    accept: list[int],
    timeout_s: float,
    secret_names: dict[str, str],
    bearer: str | None,
    body: Any = None,
) -> dict[str, Any]:
    import httpx

    about = f"{method} {url}"
    hidden = {name: await secret(found, f"header {name!r} of {about}", url) for name, found in secret_names.items()}
    keys = list(hidden.values())
    if bearer is not None:
        keys.append(await secret(bearer, about, url))
        hidden["Authorization"] = f"Bearer {keys[-1]}"
    headers = {"Idempotency-Key": current_step().idempotency_key, "Accept-Encoding": ENCODINGS, **headers, **hidden}
    # No error of httpx becomes a cause, because it refers to the request, which has the secrets.
    try:
        if httpx.URL(url).userinfo:
            raise Misuse("an http node's address has no user or password in it; name a secret instead")
        async with (
            guard(httpx.AsyncClient(timeout=timeout_s), url) as client,
            client.stream(method, url, headers=headers, params=params, json=body) as answer,
        ):
            try:
                content = await read_bounded(answer, _ANSWER_BYTES_MAX)
            except AnswerTooLarge as error:
                message = f"{about} was answered with {answer.status_code}, and the answer is not read: {error}"
                raise HttpFailed(message, status=answer.status_code, body="") from None
    except httpx.InvalidURL as error:
        raise Misuse(f"{about}: this is no address: {error}") from None
    except httpx.HTTPError as error:
        why = f"{type(error).__name__}: {veiled(str(error), keys)}"
        raise HttpFailed(f"{about} was not answered: {why}", status=None, body="") from None
    return _read(_unpacked(answer, content), about, accept, keys)


def _unpacked(answer: httpx.Response, content: bytes) -> httpx.Response:
    import httpx

    packed = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in answer.headers.multi_items() if name not in packed]
    return httpx.Response(answer.status_code, headers=headers, content=content)


def _read(answer: httpx.Response, about: str, accept: list[int], keys: list[str]) -> dict[str, Any]:
    if answer.status_code >= 400 and answer.status_code not in accept:
        text = veiled(answer.text, keys)[:_SHOWN_CHARS]
        message = f"{about} was answered with {answer.status_code}: {text}"
        raise HttpFailed(message, status=answer.status_code, body=text)
    body: Any = answer.text
    if "json" in answer.headers.get("content-type", "") and answer.content:
        try:
            body = answer.json()
        except ValueError as error:
            text = veiled(answer.text, keys)[:_SHOWN_CHARS]
            message = f"{about} was answered with what is said to be JSON, and is not: {error}: {text}"
            raise HttpFailed(message, status=answer.status_code, body=text) from None
    return {
        "status": answer.status_code,
        "headers": veiled(dict(answer.headers), keys),
        "body": veiled(body, keys),
    }
