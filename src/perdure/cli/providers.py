"""Sign-in through an OpenID Connect provider for `perdure serve`. The settings come from options, or from
`[serve.oidc]` of perdure.toml.

The client's secret is never an option, because everybody on the machine can read the options of a process. It is never
in perdure.toml either, because that file is kept with the code. The secret comes from the environment or from a
separate file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.errors import Refusal
from perdure.cli.params import length
from perdure.cli.settings import Settings

if TYPE_CHECKING:
    from perdure.dashboard import Oidc

SECRET_VARIABLE = "PERDURE_OIDC_CLIENT_SECRET"  # noqa: S105 - this is its name
SECTION = "[serve.oidc]"
_TYPES: dict[str, tuple[type[Any], str]] = {
    "issuer": (str, "a text"),
    "client_id": (str, "a text"),
    "redirect_uri": (str, "a text"),
    "client_secret_file": (str, "a text"),
    "scopes": (dict, "a table of claims"),
    "title": (str, "a text"),
    "request": (list, "a list"),
    "lasts": (str, 'a span, as "8h"'),
    "trust_unverified_email": (bool, "true or false"),
}
_NEEDED = ("issuer", "client_id", "redirect_uri", "scopes")


def provider_of(settings: Settings, options: Mapping[str, Any]) -> Oidc | None:
    """Return the provider through which people sign in. Return None if neither the options nor the file name a
    provider.

    An option replaces the entry of the same name in the file. Raises Refusal. Raises Misuse for values that do not fit.
    """
    found = _section(settings)
    given = {name: value for name, value in options.items() if value}
    if "scopes" in given:
        given["scopes"] = _scopes(given["scopes"])
    merged = {**found, **given}
    if not merged:
        return None
    missing = [name for name in _NEEDED if not merged.get(name)]
    if missing:
        raise Refusal(
            f"sign-in through a provider needs {', '.join(missing)}",
            f"add {', '.join(_option(name) for name in missing)}, or add it to {SECTION} of perdure.toml",
        )
    file = merged.pop("client_secret_file", None)
    folder = Path.cwd() if "client_secret_file" in given else settings.folder
    secret = os.environ.get(SECRET_VARIABLE, "") if file is None else _secret(folder / file)
    if "lasts" in merged:
        merged["lasts"] = _span(merged["lasts"])
    from perdure.dashboard import Oidc

    return Oidc(**merged, client_secret=secret)


def _option(name: str) -> str:
    return {"scopes": "--oidc-scope"}.get(name, f"--oidc-{name.replace('_', '-')}")


def _section(settings: Settings) -> dict[str, Any]:
    found = settings.serve
    unknown = sorted(set(found) - {"oidc"})
    if unknown:
        raise Refusal(f"[serve] of {settings.file} has the unknown key {unknown[0]!r}", "the only key is oidc")
    section = found.get("oidc", {})
    if not isinstance(section, dict):
        raise Refusal(f"serve.oidc of {settings.file} is not a table", f"write {SECTION} above its entries")
    if "client_secret" in section:
        raise Refusal(
            f"{SECTION} of {settings.file} has the client's secret in it, which everybody who reads the code can read",
            f"set {SECRET_VARIABLE}, or name a file that only you can read: client_secret_file. Then let the provider"
            " make a new secret",
        )
    for name, value in section.items():
        if name not in _TYPES:
            raise Refusal(
                f"{SECTION} of {settings.file} has the unknown key {name!r}", f"the keys are {', '.join(_TYPES)}"
            )
        kind, words = _TYPES[name]
        if not isinstance(value, kind):
            raise Refusal(f"{name} in {SECTION} of {settings.file} must be {words}, not {value!r:.80}")
    return dict(section)


def _scopes(given: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Return `groups=ops=operate` as {"groups": {"ops": ["operate"]}}. A value may contain `=`."""
    found: dict[str, dict[str, list[str]]] = {}
    for text in given:
        rest, _, scope = text.rpartition("=")
        claim, _, value = rest.partition("=")
        if not claim or not value or not scope:
            raise Refusal(f"{text!r:.80} is not CLAIM=VALUE=SCOPE", "write it as --oidc-scope groups=ops=operate")
        found.setdefault(claim, {}).setdefault(value, []).append(scope)
    return found


def _secret(path: Path) -> str:
    from perdure.http.private_files import check_private

    try:
        check_private(path, "the client's secret")
        secret = path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise Refusal(f"cannot read the client's secret {path}: {error}") from error
    if not secret:
        raise Refusal(f"the file of the client's secret {path} is empty")
    return secret


def _span(text: str) -> timedelta:
    return length(text, "lasts")


__all__ = ["SECRET_VARIABLE", "provider_of"]
