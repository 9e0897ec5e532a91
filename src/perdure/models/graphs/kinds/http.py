"""Nodes that make an HTTP request, as a step."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

from msgspec import field

from perdure.errors import HttpFailed, Misuse
from perdure.models.functions.context import current_step
from perdure.models.functions.define import step
from perdure.models.graphs.kinds.base import Kind, Preparing, kind
from perdure.models.graphs.kinds.function import StepWork

_TIMEOUT_S = 60.0
_SHOWN_CHARS = 500


@kind
class Http(Kind, frozen=True, kw_only=True, tag="http"):
    """Makes a request; its result is {status, headers, body}, the body as JSON if it is. All of `url`, `headers`,
    `params` and `body` are expressions or have them inside; `body` is sent as JSON.

    A status of 400 or more fails the attempt (with HttpFailed, to be tried again by the retry policy), unless `accept`
    names it. The same `Idempotency-Key` header goes with all attempts.
    """

    url: str
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    accept: list[int] = field(default_factory=list)

    def prepare(self, about: Preparing) -> StepWork:
        self.refuse(about, "input")
        if importlib.util.find_spec("httpx") is None:
            raise Misuse(f"{about.place}: http nodes need httpx; install perdure[graphs]")
        parts = {
            "method": f"'{self.method}'",
            "url": self.url,
            "headers": self.headers,
            "params": self.params,
            "accept": self.accept,
            "timeout_s": self.timeout or _TIMEOUT_S,
        }
        if self.body is not None:
            parts["body"] = self.body
        return StepWork(Kind(input=parts, timeout=self.timeout, retry=self.retry), about, _request)


@step(name="http")
async def _request(
    method: str,
    url: str,
    headers: dict[str, str],
    params: dict[str, Any],
    accept: list[int],
    timeout_s: float,
    body: Any = None,
) -> dict[str, Any]:
    import httpx

    headers = {"Idempotency-Key": current_step().idempotency_key, **headers}
    async with httpx.AsyncClient(timeout=timeout_s) as client:
        answer = await client.request(method, url, headers=headers, params=params, json=body)
    if answer.status_code >= 400 and answer.status_code not in accept:
        text = answer.text[:_SHOWN_CHARS]
        message = f"{method} {url} was answered with {answer.status_code}: {text}"
        raise HttpFailed(message, status=answer.status_code, body=text)
    is_json = "json" in answer.headers.get("content-type", "")
    return {
        "status": answer.status_code,
        "headers": dict(answer.headers),
        "body": answer.json() if is_json and answer.content else answer.text,
    }
