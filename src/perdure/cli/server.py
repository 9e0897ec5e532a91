"""`perdure serve`: the HTTP API and the dashboard. They need the extra `http`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands import command
from perdure.cli.errors import Code, Refusal
from perdure.cli.providers import SECRET_VARIABLE, provider_of
from perdure.cli.settings import shown
from perdure.cli.signals import StopSignals
from perdure.cli.terminal import Terminal
from perdure.cli.user_modules import load
from perdure.cli.worker import LogLevel, set_up_logging

if TYPE_CHECKING:
    from perdure.dashboard import Oidc

_EXTRA = ("perdure.http", "litestar", "uvicorn", "jinja2")

Graphs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODULE", help="Modules with graphs, to draw their runs. Default: `modules` in perdure.toml."
    ),
]


Certificate = Annotated[
    str | None,
    typer.Option(
        "--tls-certificate",
        metavar="FILE",
        help="Use TLS, with this certificate and those of its issuers (PEM).",
        show_default=False,
    ),
]
Key = Annotated[
    str | None,
    typer.Option("--tls-key", metavar="FILE", help="The certificate's key (PEM). Only its owner may read it."),
]
ClientCa = Annotated[
    str | None,
    typer.Option(
        "--tls-client-ca", metavar="FILE", help="Accept only clients with a certificate of these issuers (PEM)."
    ),
]
OidcIssuer = Annotated[
    str | None,
    typer.Option("--oidc-issuer", metavar="URL", help="Let people sign in to the dashboard through this provider."),
]
OidcClientId = Annotated[
    str | None, typer.Option("--oidc-client-id", metavar="ID", help="The client id of this server at the provider.")
]
OidcRedirectUri = Annotated[
    str | None,
    typer.Option("--oidc-redirect-uri", metavar="URL", help="https://…/ui/sign-in/oidc/callback of this server."),
]
OidcSecretFile = Annotated[
    str | None,
    typer.Option(
        "--oidc-client-secret-file",
        metavar="FILE",
        help=f"The file of the client's secret. Default: the variable {SECRET_VARIABLE}.",
    ),
]
OidcScopes = Annotated[
    list[str] | None,
    typer.Option(
        "--oidc-scope", metavar="CLAIM=VALUE=SCOPE", help="The scope for a claim: groups=ops=operate. Repeatable."
    ),
]


TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        metavar="ADDRESS",
        help="A reverse proxy, or a network of them, whose X-Forwarded-For is used for rate limits.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    @command(app, "serve")
    async def serve(
        terminal: Terminal,
        modules: Graphs = None,
        host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
        port: Annotated[
            int, typer.Option("--port", "-p", min=0, max=65_535, help="The port. 0 takes any free one.")
        ] = 8080,
        has_dashboard: Annotated[
            bool, typer.Option("--dashboard/--no-dashboard", help="Serve the dashboard too, or only the API.")
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
        """Serve the HTTP API and the dashboard.

        The command serves one store until Ctrl-C or SIGTERM. It executes no workflows; workers do that. The dashboard
        draws runs of the graphs in MODULE."""
        http = http_extra()
        tls = _tls(http, tls_certificate, tls_key, tls_client_ca)
        oidc = {
            "issuer": oidc_issuer,
            "client_id": oidc_client_id,
            "redirect_uri": oidc_redirect_uri,
            "client_secret_file": oidc_client_secret_file,
            "scopes": oidc_scope,
        }
        provider = _provider(terminal, oidc, has_dashboard=has_dashboard)
        set_up_logging(log_level)
        async with terminal.client() as client:
            signals = StopSignals(lambda: terminal.note("stopped at once"))
            try:
                pages = _pages(terminal, modules or (), provider) if has_dashboard else None
                needs_none = no_auth or await http.has_tokens(client)
                token = None if needs_none else http.new_startup_token()
                options = {"pages": pages, "startup_token": token, "tls": tls, "trusted_proxies": trusted_proxy or ()}
                async with http.serving(client, host=host, port=port, **options) as url:
                    _announce(terminal, url, token, has_dashboard=has_dashboard)
                    await signals.wait(client)
            except OSError as error:
                raise Refusal(
                    f"cannot listen on {host}, port {port}: {error}",
                    "use another address with --host and --port",
                    code=Code.FAILED,
                    kind="cannot_listen",
                ) from error
        if terminal.as_json:
            terminal.json_line({"event": "stopped"})


def _tls(http: ModuleType, certificate: str | None, key: str | None, client_ca: str | None) -> Any:
    """Return the TLS files for `serving`, or None. Raises Refusal if the certificate or its key is missing."""
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-certificate" if certificate is None else "--tls-key"
        raise Refusal(f"TLS needs a certificate and its key; {missing} is missing", f"add {missing} FILE")
    return http.Tls(certificate=certificate, key=key, client_ca=client_ca)


def _announce(terminal: Terminal, url: str, token: str | None, *, has_dashboard: bool) -> None:
    """Show the URLs. If there is a start-up token, the link contains it. So only people who see this output can sign in
    with it.
    """
    store = shown(terminal.settings.store)
    link = f"{url}/ui" if token is None else f"{url}/ui/sign-in?token={token}"
    if terminal.as_json:
        said = {"event": "serving", "store": store, "pid": os.getpid(), "url": url}
        terminal.json_line(said if token is None else {**said, "token": token})
        return
    terminal.print_text(f"the HTTP API of {store} is at {url}")
    if token is not None:
        terminal.print_text(
            f"programs send `Authorization: Bearer {token}`; it is valid until this server ends or a token is created"
        )
    if has_dashboard:
        terminal.print_text(f"the dashboard is at {link}")
    terminal.note("Ctrl-C stops it")


def _provider(terminal: Terminal, options: dict[str, Any], *, has_dashboard: bool) -> Oidc | None:
    """Return the provider for `dashboard`, or None. Raises Refusal."""
    if has_dashboard:
        return provider_of(terminal.settings, options)
    if any(options.values()):
        raise Refusal(
            "sign-in through a provider needs the dashboard", "leave out --no-dashboard, or the --oidc-… options"
        )
    return None


def _pages(terminal: Terminal, targets: Sequence[str], provider: Oidc | None) -> Any:
    """Return the dashboard. It draws runs of the graphs in these modules.

    The modules that perdure.toml names may need packages or settings that only workers have. If one of these modules
    cannot be imported, its graphs are not drawn. Raises Refusal if a module that was named on the command line cannot
    be imported.
    """
    for target in targets or terminal.settings.modules:
        try:
            load(target, terminal.settings)
        except Refusal as refusal:
            if targets:
                raise
            terminal.note(f"the graphs of {target} are not drawn: {refusal}")
    from perdure.models.functions.define import decorated_workflows

    pages: Any = importlib.import_module("perdure.dashboard")
    return pages.dashboard(decorated_workflows(), oidc=provider)


def http_extra() -> ModuleType:
    """Return the module perdure.http. Raises Refusal if the extra is not installed."""
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
