"""`perdure serve` and `tokens`: where the HTTP API is, who may use it, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import ssl

import httpx
import pytest
import trustme

from tests.cli.shell import Shell


def get(url: str, token: str = "") -> int:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"{url}/api/v1/runs", headers=headers, timeout=30).status_code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_a_pipe_it_tells_where_it_listens_and_ends_when_it_is_told_to(shell: Shell, number: signal.Signals) -> None:
    with shell.begin("serve", "--port", 0, "--json") as serve:
        serve.until("serving")
        [told] = [line for line in serve.written.splitlines() if '"serving"' in line]
        url = re.findall(r'"url":"([^"]+)"', told)[0]
        token = re.findall(r'"token":"([^"]+)"', told)[0]
        assert (get(url), get(url, token), get(url, token[:-1])) == (401, 200, 401)
        serve.signal(number)
        done = serve.ended()
    assert done.code == 0
    assert [line["event"] for line in done.json_lines()] == ["serving", "stopped"]


def test_in_a_terminal_it_says_where_it_listens_until_ctrl_c(shell: Shell) -> None:
    with shell.begin("serve", "--port", 0, terminal=True) as serve:
        serve.until("Ctrl-C stops it")
        [link] = re.findall(r"the dashboard is at (\S+)\n", serve.written)
        with httpx.Client(timeout=30, follow_redirects=True) as browser:
            assert browser.get(link.partition("?")[0].replace("/sign-in", "/runs")).url.path == "/ui/sign-in"
            assert browser.get(f"{link}x").url.path == "/ui/sign-in"
            page = browser.get(link)
            assert page.url.path == "/ui"
            assert "token=" not in str(page.url)
            assert browser.get(page.url.join("/ui/runs")).url.path == "/ui/runs"
        serve.type("\x03")
        assert serve.ended().code == 0


def test_without_questions_if_that_is_said(shell: Shell) -> None:
    with shell.begin("serve", "--port", 0, "--no-auth", terminal=True) as serve:
        serve.until("Ctrl-C stops it")
        [url] = re.findall(r"is at (http://127\.0\.0\.1:\d+)\n", serve.written)
        assert get(url) == 200


def test_the_first_token_ends_the_start_up_token(shell: Shell) -> None:
    with shell.begin("serve", "--port", 0, "--json") as serve:
        serve.until("serving")
        url = re.findall(r'"url":"([^"]+)"', serve.written)[0]
        startup = re.findall(r'"token":"([^"]+)"', serve.written)[0]
        with httpx.Client(timeout=30) as browser:
            browser.get(f"{url}/ui/sign-in?token={startup}")
            assert browser.get(f"{url}/ui/runs").status_code == 200
            token = shell("tokens", "create", "ci", "--scope", "read").out.strip()
            assert (get(url, startup), get(url, token)) == (401, 200)
            assert browser.get(f"{url}/ui/runs").status_code == 303


def test_what_cannot_be_listened_on_is_refused(shell: Shell) -> None:
    with shell.begin("serve", "--port", 0, "--json") as serve:
        serve.until("serving")
        port = re.findall(r":(\d+)\"", serve.written)[0]
        assert "--port" in shell("serve", "--port", port, code=1).err
    refused = shell("serve", "--host", "0.0.0.0", "--port", 0, code=2)
    assert "perdure tokens create" in refused.err


def test_tokens_are_made_once_used_and_revoked(shell: Shell) -> None:
    assert "there are no tokens" in shell.terminal("tokens", "list")
    token = shell("tokens", "create", "ci", "--scope", "operate").out.strip()
    assert re.fullmatch(r"perdure_ci_[\w-]{43}", token)
    assert token not in shell("tokens", "list", "--json").out
    [one] = shell("tokens", "list", "--json").json()["tokens"]
    assert (one["name"], one["scope"], one["revoked"]) == ("ci", "operate", False)
    assert one["made_by"].startswith("cli:")
    assert shell("tokens", "list").rows()[0][:3] == ["ci", "operate", "valid"]
    with shell.begin("serve", "--port", 0, "--json") as serve:
        serve.until("serving")
        url = re.findall(r'"url":"([^"]+)"', serve.written)[0]
        assert (get(url), get(url, token)) == (401, 200)
        assert "--replace" in shell("tokens", "create", "ci", code=4).err
        other = shell("tokens", "create", "ci", "--scope", "read", "--replace", "--json").json()
        assert (get(url, token), get(url, other["token"])) == (401, 200)
        assert shell("tokens", "revoke", "ci", "--json").json()["token"]["revoked"]
        assert get(url, other["token"]) == 401


def test_tokens_in_a_terminal(shell: Shell) -> None:
    screen = shell.terminal("tokens", "create", "ops", "--scope", "admin")
    assert "perdure_ops_" in screen
    assert "not shown again" in screen
    assert "valid" in shell.terminal("tokens", "list")
    assert "revoked ops" in shell.terminal("tokens", "revoke", "ops")
    assert "revoked" in shell.terminal("tokens", "list")


def test_a_token_expires_and_is_rotated(shell: Shell) -> None:
    first = shell("tokens", "create", "ci", "--scope", "read", "--scope", "operate:workflow=w", "--expires", "30d").out
    row = shell("tokens", "list").rows()[0]
    assert row[:3] == ["ci", "read, operate:workflow=w", "valid"]
    second = shell("tokens", "rotate", "ci", "--overlap", "1h", "--json").json()["token"]
    assert second != first.strip()
    [one] = shell("tokens", "list", "--json").json()["tokens"]
    assert one["expires_at"] > one["overlap_until"]
    assert one["used_at"] is None
    assert "the old secret stays valid for 1h" in shell.terminal("tokens", "rotate", "ci", "--overlap", "1h")
    assert "the old secret is no longer valid" in shell.terminal("tokens", "rotate", "ci")
    shell("tokens", "create", "brief", "--expires", "0.001s")
    assert "expired" in shell.terminal("tokens", "list")
    assert "not a span of time" in shell("tokens", "create", "x", "--expires", "soon", code=2).err
    assert "runs have no queues" in shell("tokens", "create", "x", "--scope", "read:queue=q", code=2).err
    assert shell("tokens", "rotate", "nobody", code=3).out == ""


def test_what_is_no_token_is_refused(shell: Shell) -> None:
    assert "lower-case letters" in shell("tokens", "create", "No Name", code=2).err
    assert "scope is read, operate, admin" in shell("tokens", "create", "x", "--scope", "all", code=2).err
    assert shell("tokens", "revoke", "nobody", code=3).out == ""
    assert shell("tokens", "list").out == ""


def test_it_speaks_tls_if_it_is_given_a_certificate(shell: Shell) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    certificate, key, clients = (shell.folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
    certificate.write_bytes(made.cert_chain_pems[0].bytes())
    key.write_bytes(made.private_key_pem.bytes())
    clients.write_bytes(authority.cert_pem.bytes())
    options = ("serve", "--port", 0, "--json", "--tls-certificate", certificate)
    assert "--tls-key is missing" in shell(*options, code=2).err
    key.chmod(0o644)
    assert f"chmod 600 {key}" in shell(*options, "--tls-key", key, code=2).err
    key.chmod(0o600)
    with shell.begin(*options, "--tls-key", key, "--tls-client-ca", clients) as serve:
        serve.until("serving")
        url = re.findall(r'"url":"(https://[^"]+)"', serve.written)[0]
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/health/live", verify=context, timeout=30)
        authority.issue_cert("ops@example.org").configure_cert(context)
        assert httpx.get(f"{url}/health/live", verify=context, timeout=30).status_code == 200
        serve.signal(signal.SIGTERM)
        assert serve.ended().code == 0


def test_the_audit_of_everything_is_written_as_lines(shell: Shell) -> None:
    shell("tokens", "create", "ci", "--scope", "read")
    lines = [json.loads(line) for line in shell("audit", "export", "--json").out.splitlines()]
    assert [(one["type"], one.get("change")) for one in lines][-2:] == [("token", "created"), ("end", None)]
    assert lines[-1]["lines"] == len(lines) - 1
    assert shell("audit", "export", "--since", "1h").out == shell("audit", "export").out
    assert '"type":"end"' in shell.terminal("audit", "export", "--until", "1h")
    assert "not a time" in shell("audit", "export", "--since", "soon", code=2).err
