"""Nodes that call a tool of an MCP server as a step. The server is reached over HTTP, or is a program that is started
for the call.
"""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import AsyncExitStack
from typing import Annotated, Any, Final

from msgspec import Meta, field
from msgspec.structs import replace

from perdure.errors import McpFailed, Misuse
from perdure.models.functions.context import current_step
from perdure.models.functions.define import step
from perdure.models.graphs.kinds.base import Kind, Preparing, kind
from perdure.models.graphs.kinds.function import StepWork
from perdure.models.graphs.network import guard
from perdure.models.graphs.secrets import secret, veiled
from perdure.models.graphs.spec import Name

_TIMEOUT_S: Final = 60.0
_SHOWN_CHARS: Final = 500
_IDEMPOTENCY_KEY: Final = "perdure.dev/idempotency-key"

Part = Annotated[str, Meta(min_length=1)]


@kind
class Mcp(Kind, frozen=True, kw_only=True, tag="mcp"):
    """Calls a tool of an MCP server. `input` maps the arguments of the tool. Its result is {text, content, structured}:
    the whole text of the answer, the parts of the answer, and its structured content if there is any.

    `url` is an expression for the address of the server, which is reached over streamable HTTP. Instead of `url`,
    `command` is a program with its arguments. It is started for each call, and reached over its standard input and
    output. `secret` is the name of a secret that is sent as `Authorization: Bearer …`. `secret_env` maps environment
    variables of the program to names of secrets. A graph in YAML or JSON can start only a program that was passed in
    with it.

    If there is no answer, or the answer says that the tool failed, the attempt fails with McpFailed. It is retried as
    the policy says. All attempts send the same idempotency key, in the request's `_meta`.
    """

    tool: Part
    url: str | None = None
    command: list[Part] = field(default_factory=list)
    secret: Name | None = None
    secret_env: dict[Part, Name] = field(default_factory=dict)

    def prepare(self, about: Preparing) -> StepWork:
        if importlib.util.find_spec("mcp") is None:
            raise Misuse(f"{about.place}: mcp nodes need the package mcp; install perdure[mcp]")
        if (self.url is None) == (not self.command):
            raise about.wrong("url", "an mcp node has either a url or a command")
        if self.secret is not None and self.url is None:
            raise about.wrong("secret", "it is sent to a url; a command gets secrets in secret_env")
        if self.secret_env and not self.command:
            raise about.wrong("secret_env", "it is for a command; a url gets a secret")
        if self.command and not about.may_start(self.command):
            handed_in = f"{{{self.command[0]!r:.80}: {self.command!r:.200}}}"
            raise about.wrong(
                "command",
                "a definition in a text starts no program that was not handed in with all its arguments: "
                f"Graph.load(…, objects={handed_in}), or build the graph in Python",
            )
        parts = {
            "tool": _quoted(self.tool),
            "arguments": {} if self.input is None else self.input,
            "url": self.url,
            "command": [_quoted(part) for part in self.command],
            "bearer": None if self.secret is None else _quoted(self.secret),
            "secret_env": {name: _quoted(found) for name, found in self.secret_env.items()},
            "timeout_s": self.timeout or _TIMEOUT_S,
        }
        return StepWork(replace(self, input=parts), about, _call)


def _quoted(text: str) -> str:
    """Return a CEL expression whose value is this text."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


@step(name="mcp")
async def _call(
    tool: str,
    arguments: dict[str, Any],
    url: str | None,
    command: list[str],
    bearer: str | None,
    secret_env: dict[str, str],
    timeout_s: float,
) -> dict[str, Any]:
    about = f"tool {tool!r} of {url or command[0]}"
    keys = {name: await secret(found, f"{name} of {about}", None) for name, found in secret_env.items()}
    if bearer is not None:
        keys["Authorization"] = await secret(bearer, about, url)
    hidden = list(keys.values())
    mcp: Any = importlib.import_module("mcp")
    meta = {_IDEMPOTENCY_KEY: current_step().idempotency_key}
    try:
        async with AsyncExitStack() as stack:
            transport = await _transport(stack, url, command, keys)
            client = await stack.enter_async_context(mcp.Client(transport, read_timeout_seconds=timeout_s))
            answer = await client.call_tool(tool, arguments, meta=meta)
    except Exception as error:  # noqa: BLE001 - the library's errors, those of its transports, and groups of them
        # The error does not become a cause, because it refers to the request, which has the secrets.
        leaf = _leaf(error)
        if isinstance(leaf, Misuse):
            raise leaf from None
        code = getattr(getattr(leaf, "error", None), "code", None)
        why = veiled(f"{type(leaf).__name__}: {leaf}", hidden)[:_SHOWN_CHARS]
        raise McpFailed(f"{about} was not called: {why}", tool=tool, code=code, content=[]) from None
    content = veiled(
        [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in answer.content], hidden
    )
    text = "\n".join(part["text"] for part in content if part.get("type") == "text")
    if answer.is_error:
        message = f"{about} says that it failed: {text[:_SHOWN_CHARS] or 'without a word'}"
        raise McpFailed(message, tool=tool, code=None, content=content)
    return {"text": text, "content": content, "structured": veiled(answer.structured_content, hidden)}


async def _transport(stack: AsyncExitStack, url: str | None, command: list[str], keys: dict[str, str]) -> Any:
    if url is None:
        stdio: Any = importlib.import_module("mcp.client.stdio")
        return stdio.stdio_client(
            stdio.StdioServerParameters(
                command=command[0], args=command[1:], env={**stdio.get_default_environment(), **keys}
            )
        )
    http: Any = importlib.import_module("mcp.client.streamable_http")
    headers = {"Authorization": f"Bearer {keys['Authorization']}"} if "Authorization" in keys else None
    client = await stack.enter_async_context(guard(http.create_mcp_http_client(headers=headers), url))
    return http.streamable_http_client(url, http_client=client)


def _leaf(error: BaseException) -> BaseException:
    """Return the error that matters in a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
