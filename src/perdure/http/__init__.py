"""The HTTP API: `serve("sqlite:///shop.db")`, or `create_app(engine)` inside an application of your own.

It needs the extra `http`: litestar and uvicorn. docs/http.md describes the routes, the access rules and the error
codes.
"""

from __future__ import annotations

from perdure.http.access import new_startup_token
from perdure.http.app import App, create_app
from perdure.http.connections import ConnectionLimits
from perdure.http.scopes import Scope
from perdure.http.server import serve, serving
from perdure.http.tls import Tls
from perdure.http.tokens import TokenView, has_tokens, make_token, revoke_token, rotate_token, tokens

__all__ = [
    "App",
    "ConnectionLimits",
    "Scope",
    "Tls",
    "TokenView",
    "create_app",
    "has_tokens",
    "make_token",
    "new_startup_token",
    "revoke_token",
    "rotate_token",
    "serve",
    "serving",
    "tokens",
]
