"""`perdure serve` with a provider that people sign in through: a real one, and a server in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.cli.shell import Shell
from tests.dashboard.provider import CALLBACK, Provider, running

# The provider's own code, not ours.
pytestmark = pytest.mark.filterwarnings("ignore:get_jwt_config:DeprecationWarning")

SECRET = "s3cret-of-the-client"
SECTION = """\
store = "sqlite:///shop.db"

[serve.oidc]
issuer = "{issuer}"
client_id = "perdure"
redirect_uri = "{callback}"
{more}

[serve.oidc.scopes.groups]
ops = "operate"
staff = ["read"]
"""


@pytest.fixture(scope="module")
def provider() -> Generator[Provider]:
    with running() as made:
        made.knows("ann", email="ann@example.com", email_verified=True, groups=["ops"])
        made.knows("eve", email="eve@example.com", email_verified=True, groups=["tennis"])
        yield made


def section(shell: Shell, provider: Provider, more: str = "") -> Path:
    path = shell.folder / "perdure.toml"
    path.write_text(SECTION.format(issuer=provider.url, callback=CALLBACK, more=more))
    path.chmod(0o644)
    shell.folder.chmod(0o755)
    return path


def sign_in(url: str, sub: str) -> tuple[httpx.Response, httpx.Response]:
    """How the sign-in ends, and what the page of all runs says then."""
    with httpx.Client(timeout=30, trust_env=False) as browser:
        assert browser.get(f"{url}/ui/runs").headers["location"].startswith("/ui/sign-in")
        begun = browser.get(f"{url}/ui/sign-in/oidc", params={"to": "/ui/runs"})
        assert begun.status_code == 303, begun.text
        agreed = httpx.post(begun.headers["location"], data={"sub": sub}, trust_env=False)
        back = urlsplit(agreed.headers["location"])
        assert back.geturl().startswith(CALLBACK)
        ended = browser.get(f"{url}{back.path}?{back.query}")
        return ended, browser.get(f"{url}/ui/runs")


def url_of(written: str) -> str:
    found: str = re.findall(r'"url":"([^"]+)"', written)[0]
    return found


def test_people_sign_in_through_the_provider_of_the_projects_file(shell: Shell, provider: Provider) -> None:
    section(shell, provider)
    with shell.begin("serve", "--port", 0, "--json", env={"PERDURE_OIDC_CLIENT_SECRET": SECRET}) as serve:
        serve.until("serving")
        ended, page = sign_in(url_of(serve.written), "ann")
        assert (ended.status_code, ended.headers["location"]) == (303, "/ui/runs")
        assert page.status_code == 200
        assert "oidc:ann@example.com" in page.text
        ended, page = sign_in(url_of(serve.written), "eve")
        assert "none of your claims has a scope here" in ended.text
        assert page.status_code == 303
    assert SECRET not in serve.written
    assert provider.secrets[-1] == SECRET


def test_options_stand_before_the_projects_file(shell: Shell, provider: Provider) -> None:
    secret = shell.folder / "oidc-secret"
    secret.write_text(f"{SECRET}-of-a-file\n")
    secret.chmod(0o600)
    section(shell, provider, f'client_secret_file = "{secret.name}"')
    options = ("--oidc-scope", "groups=tennis=read", "--oidc-scope", "email=root@example.com=admin")
    with shell.begin("serve", "--port", 0, "--json", *options) as serve:
        serve.until("serving")
        ended, page = sign_in(url_of(serve.written), "eve")
        assert (ended.status_code, page.status_code) == (303, 200)
        assert "none of your claims has a scope here" in sign_in(url_of(serve.written), "ann")[0].text
    assert provider.secrets[-1] == f"{SECRET}-of-a-file"


def test_options_alone_are_enough(shell: Shell, provider: Provider) -> None:
    options = (
        *("--oidc-issuer", provider.url, "--oidc-client-id", "perdure", "--oidc-redirect-uri", CALLBACK),
        *("--oidc-scope", "groups=ops=operate"),
    )
    with shell.begin("serve", "--port", 0, "--json", *options, env={"PERDURE_OIDC_CLIENT_SECRET": SECRET}) as serve:
        serve.until("serving")
        assert sign_in(url_of(serve.written), "ann")[1].status_code == 200


def test_a_secret_is_no_option_and_not_in_the_projects_file(shell: Shell, provider: Provider) -> None:
    assert "--oidc-client-secret " not in shell("serve", "--help").out
    assert "No such option" in shell("serve", "--oidc-client-secret", SECRET, code=2).err
    section(shell, provider, f'client_secret = "{SECRET}"')
    refused = shell("serve", "--port", 0, code=2)
    assert "PERDURE_OIDC_CLIENT_SECRET" in refused.err
    assert SECRET not in refused.err + refused.out


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_that_others_may_read_or_write_is_refused(shell: Shell, provider: Provider, mode: int) -> None:
    secret = shell.folder / "oidc-secret"
    secret.write_text(SECRET)
    secret.chmod(mode)
    section(shell, provider, 'client_secret_file = "oidc-secret"')
    if mode == 0o640 and secret.stat().st_uid == 0:
        secret.chmod(0o660)  # A group may read root's.
    assert f"chmod 600 {secret}" in shell("serve", "--port", 0, code=2).err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[serve.oidc]\nissuer = "https://a.example"', "--oidc-client-id"),
        ("[serve]\nport = 5", "the unknown key 'port'"),
        ("[serve]\noidc = 5", "[serve.oidc]"),
        ('[serve.oidc]\nissuer = "https://a"\nsecret = "x"', "the unknown key 'secret'"),
        ("[serve.oidc]\nissuer = 5", "issuer in [serve.oidc]"),
        (SECTION.format(issuer="http://elsewhere", callback=CALLBACK, more=""), "issuer must be an https URL"),
        (SECTION.format(issuer="https://[", callback=CALLBACK, more=""), "issuer must be an https URL"),
        (SECTION.format(issuer="https://a", callback=CALLBACK, more='client_secret_file = "none"'), "cannot read"),
        (SECTION.format(issuer="https://a", callback=CALLBACK, more='lasts = "13h"'), "lasts must be more than 0"),
        (SECTION.format(issuer="https://a", callback=CALLBACK, more='lasts = "soon"'), "lasts"),
        (SECTION.format(issuer="https://a", callback=CALLBACK, more="").replace("operate", "rule"), "a scope is"),
        (SECTION.format(issuer="https://a", callback=CALLBACK, more="request = [1]"), "request[0]"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(shell: Shell, text: str, said: str) -> None:
    path = shell.folder / "perdure.toml"
    path.write_text(text if text.startswith("store") else f'store = "sqlite:///shop.db"\n{text}\n')
    path.chmod(0o644)
    shell.folder.chmod(0o755)
    assert said in shell("serve", "--port", 0, code=2).err


def test_a_provider_needs_pages(shell: Shell) -> None:
    refused = shell("serve", "--no-dashboard", "--oidc-issuer", "https://a.example", code=2)
    assert "--no-dashboard" in refused.err
    assert "CLAIM=VALUE=SCOPE" in shell("serve", "--oidc-scope", "ops", code=2).err
