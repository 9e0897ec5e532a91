"""A real OpenID Connect provider, on this machine."""

from __future__ import annotations

import io
import threading
from base64 import b64decode
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote

import httpx
import oidc_provider_mock
from werkzeug.serving import make_server

from perdure.dashboard import Oidc

CALLBACK = "http://localhost/ui/sign-in/oidc/callback"
SCOPES: dict[str, Any] = {"groups": {"ops": "operate", "staff": "read"}, "email": {"root@example.com": ["admin"]}}


class Provider:
    """The provider, and what was asked of it."""

    def __init__(self) -> None:
        self.tokens_asked: list[dict[str, list[str]]] = []
        self.secrets: list[str] = []  # that clients have shown
        inner = oidc_provider_mock.app(require_nonce=True)

        def recorded(environ: dict[str, Any], start_response: Any) -> Any:
            if environ["PATH_INFO"] == "/oauth2/token":
                body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
                self.tokens_asked.append(parse_qs(body.decode()))
                shown = environ.get("HTTP_AUTHORIZATION", "").removeprefix("Basic ")
                self.secrets.append(unquote(b64decode(shown).decode().partition(":")[2]))
                environ["wsgi.input"] = io.BytesIO(body)
            return inner(environ, start_response)

        self.server = make_server("127.0.0.1", 0, recorded, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def knows(self, sub: str, **claims: Any) -> None:
        assert httpx.put(f"{self.url}/users/{sub}", json=claims, trust_env=False).status_code == 204

    def config(self, **other: Any) -> Oidc:
        given: dict[str, Any] = {
            "issuer": self.url,
            "client_id": "perdure",
            "client_secret": "s3cret",
            "redirect_uri": CALLBACK,
            "scopes": SCOPES,
            "title": "Example",
            **other,
        }
        return Oidc(**given)


@contextmanager
def running() -> Generator[Provider]:
    made = Provider()
    serving = threading.Thread(target=made.server.serve_forever, args=(0.02,))
    serving.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        serving.join()
        made.server.server_close()
