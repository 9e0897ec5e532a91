"""An MCP server with a few tools, for tests: run as a program it speaks over its standard input and output."""

from __future__ import annotations

import os

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

CALLS: list[str] = []  # the idempotency keys that came with calls


def make_server() -> MCPServer:
    server = MCPServer("tools")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    def greet(name: str) -> str:
        return f"hello {name}, it is {os.environ.get('SHIFT', 'day')}"

    @server.tool()
    def break_down(text: str) -> str:
        raise ToolError(f"no {text}")

    @server.tool()
    def stumble(ctx: Context) -> str:
        meta = ctx.request_context.meta or {}
        CALLS.append(str(dict(meta).get("perdure.dev/idempotency-key")))
        if len(CALLS) < 3:
            raise ValueError("not yet")
        return "at last"

    return server


if __name__ == "__main__":
    make_server().run("stdio")
