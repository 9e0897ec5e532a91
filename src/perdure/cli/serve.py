"""`perdure serve`: the HTTP API, which is an extra of its own."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.modules import load
from perdure.cli.providers import SECRET_VARIABLE, provider_of
from perdure.cli.settings import shown
from perdure.cli.signals import StopSignals
from perdure.cli.verbs import verb
from perdure.cli.worker import LogLevel, set_up_logging

if TYPE_CHECKING:
    from perdure.dashboard import Oidc

_EXTRA = ("perdure.http", "litestar", "uvicorn", "jinja2")

Graphs = Annotated[
    list[str] | None,
    typer.Argument(metavar="MODULE", help="Where graphs are, to draw their runs; else the `modules` of perdure.toml."),
]


Certificate = Annotated[
    str | None,
    typer.Option(
        "--tls-certificate",
        metavar="FILE",
        help="Speak TLS, with this certificate and its issuers' (PEM).",
        show_default=False,
    ),
]
Key = Annotated[
    str | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key (PEM), for its owner only.")
]
ClientCa = Annotated[
    str | None,
    typer.Option("--tls-client-ca", metavar="FILE", help="Let only clients in with a certificate of these (PEM)."),
]
OidcIssuer = Annotated[
    str | None,
    typer.Option("--oidc-issuer", metavar="URL", help="Have people sign in to the pages through this provider."),
]
OidcClientId = Annotated[
    str | None, typer.Option("--oidc-client-id", metavar="ID", help="This server's name at the provider.")
]
OidcRedirectUri = Annotated[
    str | None,
    typer.Option("--oidc-redirect-uri", metavar="URL", help="https://…/ui/sign-in/oidc/callback of this server."),
]
OidcSecretFile = Annotated[
    str | None,
    typer.Option(
        "--oidc-client-secret-file", metavar="FILE", help=f"The client's secret; else {SECRET_VARIABLE} has it."
    ),
]
OidcScopes = Annotated[
    list[str] | None,
    typer.Option("--oidc-scope", metavar="CLAIM=VALUE=SCOPE", help="Who may do what: groups=ops=operate. Repeatable."),
]


TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        metavar="ADDRESS",
        help="A reverse proxy, or a network of them, whose X-Forwarded-For says who tries to get in.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    @verb(app, "serve")
    async def serve(
        desk: Desk,
        modules: Graphs = None,
        host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
        port: Annotated[int, typer.Option("--port", "-p", min=0, max=65_535, help="The port; 0 is any.")] = 8080,
        has_dashboard: Annotated[
            bool, typer.Option("--dashboard/--no-dashboard", help="With pages, or without.")
        ] = True,
        no_auth: Annotated[
            bool,
            typer.Option("--no-auth", help="While there are no tokens, let everybody on this machine in."),
        ] = False,
        tls_certificate: Certificate = None,
        tls_key: Key = None,
        tls_client_ca: ClientCa = None,
        trusted_proxy: TrustedProxies = None,
        oidc_issuer: OidcIssuer = None,
        oidc_client_id: OidcClientId = None,
        oidc_redirect_uri: OidcRedirectUri = None,
        oidc_client_secret_file: OidcSecretFile = None,
        oidc_scope: OidcScopes = None,
        log_level: LogLevel = "info",
    ) -> None:
        """Serve the HTTP API of a store, and the dashboard, until Ctrl-C or SIGTERM. It runs no workflows: that is what
        workers do. Graphs of MODULE are drawn on the pages of their runs."""
        http = http_extra()
        tls = _tls(http, tls_certificate, tls_key, tls_client_ca)
        oidc = {
            "issuer": oidc_issuer,
            "client_id": oidc_client_id,
            "redirect_uri": oidc_redirect_uri,
            "client_secret_file": oidc_client_secret_file,
            "scopes": oidc_scope,
        }
        provider = _provider(desk, oidc, has_dashboard=has_dashboard)
        set_up_logging(log_level)
        async with desk.client() as client:
            signals = StopSignals(lambda: desk.aside("stopped at once"))
            try:
                pages = _pages(desk, modules or (), provider) if has_dashboard else None
                needs_none = no_auth or await http.has_tokens(client)
                token = None if needs_none else http.new_startup_token()
                options = {"pages": pages, "startup_token": token, "tls": tls, "trusted_proxies": trusted_proxy or ()}
                async with http.serving(client, host=host, port=port, **options) as url:
                    _tell(desk, url, token, has_dashboard=has_dashboard)
                    await signals.wait(client)
            except OSError as error:
                raise Refusal(
                    f"nothing can listen on {host}, port {port}: {error}",
                    "choose another with --host and --port",
                    code=Code.FAILED,
                    kind="cannot_listen",
                ) from error
        if desk.as_json:
            desk.json_line({"event": "stopped"})


def _tls(http: ModuleType, certificate: str | None, key: str | None, client_ca: str | None) -> Any:
    """What `serving` takes. Raises Refusal if half of it is missing."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-certificate" if certificate is None else "--tls-key"
        raise Refusal(f"TLS needs a certificate and its key, and {missing} is missing", f"add {missing} FILE")
    return http.Tls(certificate=certificate, key=key, client_ca=client_ca)


def _tell(desk: Desk, url: str, token: str | None, *, has_dashboard: bool) -> None:
    """Say where it is, and how to get in: a start-up token is in the link, as nobody else is to know it."""
    store = shown(desk.settings.store)
    link = f"{url}/ui" if token is None else f"{url}/ui/sign-in?token={token}"
    if desk.as_json:
        said = {"event": "serving", "store": store, "pid": os.getpid(), "url": url}
        desk.json_line(said if token is None else {**said, "token": token})
        return
    desk.say(f"the HTTP API of {store} is at {url}")
    if token is not None:
        desk.say(f"programs send `Authorization: Bearer {token}`, until this server ends or a token is made")
    if has_dashboard:
        desk.say(f"the dashboard is at {link}")
    desk.aside("Ctrl-C stops it")


def _provider(desk: Desk, options: dict[str, Any], *, has_dashboard: bool) -> Oidc | None:
    """What `dashboard` takes. Raises Refusal."""
    if has_dashboard:
        return provider_of(desk.settings, options)
    if any(options.values()):
        raise Refusal("people sign in to the pages, and there are none", "leave out --no-dashboard, or the --oidc-…")
    return None


def _pages(desk: Desk, targets: Sequence[str], provider: Oidc | None) -> Any:
    """The dashboard, with pictures of the graphs that there are in these modules. Those of perdure.toml may be for
    workers only, and cannot always be imported here: then there are no pictures. Raises Refusal."""
    for target in targets or desk.settings.modules:
        try:
            load(target, desk.settings)
        except Refusal as refusal:
            if targets:
                raise
            desk.aside(f"graphs of {target} are not drawn: {refusal}")
    from perdure.models.functions.define import decorated_workflows

    pages: Any = importlib.import_module("perdure.dashboard")
    return pages.dashboard(decorated_workflows(), oidc=provider)


def http_extra() -> ModuleType:
    """perdure.http. Raises Refusal if what it needs is not installed."""
    try:
        importlib.import_module("jinja2")
        return importlib.import_module("perdure.http")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise Refusal(
            f"the HTTP API is not installed: there is no {error.name}",
            "pip install 'perdure[http]'",
            code=Code.FAILED,
            kind="extra_missing",
        ) from error


__all__ = ["add_to", "http_extra"]
