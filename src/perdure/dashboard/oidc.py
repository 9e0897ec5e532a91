"""Signing in to the pages through an OpenID Connect provider: authorization code flow with PKCE, state and nonce.

What a sign-in needs to end (the nonce, the verifier, where to go then) is in the store for ten minutes, so that any
server can end it, once. The browser that began it keeps the state in a cookie: nobody can have another browser end a
sign-in of theirs. Needs the extra `oidc`: authlib, joserfc and httpx.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from perdure.dashboard.sessions import LASTS, NoSession, open_foreign_session
from perdure.engine import AnyClient
from perdure.errors import InvalidArguments, Misuse
from perdure.http.access import is_loopback
from perdure.http.scopes import Grants, parse_scopes

log = logging.getLogger("perdure.http")

COOKIE: Final = "perdure_oidc"
PENDING: Final = timedelta(minutes=10)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECRET_BYTES: Final = 32
_PATIENCE_S: Final = 10.0
_KEYS_EVERY_S: Final = 60.0  # keys are looked up again for one that is not known, no more often than that
_LEEWAY_S: Final = 60
_TEXT_MAX: Final = 200
# Signatures that anybody can check and only the provider can make: no shared secrets, and never none at all.
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_TOO_LATE: Final = "Signing in was begun in another browser, or too long ago. Try again."


@dataclass(frozen=True, kw_only=True)
class Oidc:
    """A provider. `redirect_uri` is this server's https://…/ui/sign-in/oidc/callback, as the provider knows it.

    `scopes` says what people may do by their claims: {"groups": {"ops": "operate", "admins": "admin"}, "email":
    {"ann@example.com": "admin"}}. A claim may be a text or a list. All that match count, and whoever has none that
    matches does not get in. An email address counts only if the provider says that it is verified, unless
    `trust_unverified_email` is set for a provider that never says so. Raises InvalidArguments.
    """

    issuer: str
    client_id: str
    redirect_uri: str
    scopes: Mapping[str, Mapping[str, str | Sequence[str]]]
    client_secret: str = field(default="", repr=False)
    title: str = "single sign-on"
    request: Sequence[str] = ("openid", "email", "profile")
    lasts: timedelta = LASTS
    trust_unverified_email: bool = False

    def __post_init__(self) -> None:
        for what, url in (("issuer", self.issuer), ("redirect_uri", self.redirect_uri)):
            parts = urlsplit(url)
            if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
                raise InvalidArguments(f"the {what} is an https URL, or one of this machine, not {url!r:.200}")
        if not self.client_id or "openid" not in self.request:
            raise InvalidArguments("a provider needs a client_id, and `openid` among what is requested")
        if not timedelta(0) < self.lasts <= LASTS:
            raise InvalidArguments(f"a session lasts up to {LASTS}, not {self.lasts}")
        granted = [given for values in self.scopes.values() for given in values.values()]
        if not granted:
            raise InvalidArguments("scopes= says which claims let somebody in, and for what; without any, nobody is")
        for given in granted:
            if parse_scopes(given).is_restricted:
                raise InvalidArguments(f"the pages show everything, so they need a scope for everything, not {given!r}")

    def grants(self, claims: Mapping[str, Any]) -> Grants | None:
        """What somebody with these claims may do; None: nothing."""
        found: list[str] = []
        for claim, values in self.scopes.items():
            if claim == "email" and not (self.trust_unverified_email or claims.get("email_verified") is True):
                continue  # Anybody may have given this address to the provider.
            has = claims.get(claim)
            for one in has if isinstance(has, list) else [has]:
                if isinstance(one, str) and one in values:
                    given = values[one]
                    found += [given] if isinstance(given, str) else given
        return parse_scopes(found) if found else None


class OidcProvider:
    """Asks the provider. What it says of itself and its keys are read when they are needed, and kept."""

    def __init__(self, config: Oidc) -> None:
        if not (find_spec("authlib") and find_spec("joserfc")):  # Said now, not when somebody signs in.
            raise Misuse("signing in through a provider needs more: pip install 'perdure[oidc]'")
        self.config = config
        self._metadata: dict[str, Any] | None = None
        self._keys: Any = None
        self._keys_at = 0.0

    async def begin(self, client: AnyClient, to: str) -> tuple[str, str]:
        """Where to send the browser, and the state that it has to keep. Raises NoSession."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        state, nonce, verifier = (secrets.token_urlsafe(_SECRET_BYTES) for _ in range(3))
        metadata = await self._described()
        url = prepare_grant_uri(
            metadata["authorization_endpoint"],
            client_id=self.config.client_id,
            response_type="code",
            redirect_uri=self.config.redirect_uri,
            scope=" ".join(self.config.request),
            state=state,
            nonce=nonce,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )
        await client.credentials.tidy_sessions()
        body = {"nonce": nonce, "verifier": verifier, "to": to}
        lasts_us = PENDING // _MICROSECOND
        await client.credentials.put_session(_pending(state), body, lasts_us=lasts_us, actor="oidc")
        return str(url), state

    async def finish(self, client: AnyClient, kept: str, asked: Mapping[str, str]) -> tuple[str, str]:
        """The id of a new session for whoever comes back from the provider, and where they wanted to go. Raises
        NoSession. A second time with the same state is too late."""
        state = asked.get("state", "")
        if not state or not hmac.compare_digest(state.encode(), kept.encode()):
            raise NoSession(_TOO_LATE)
        pending = await client.credentials.session(_pending(state))
        if pending is None:
            raise NoSession(_TOO_LATE)
        await client.credentials.end_session(_pending(state))
        if asked.get("error") or not asked.get("code"):
            said = f"{asked.get('error', 'no code')} {asked.get('error_description', '')}".strip()
            raise NoSession(f"The provider does not let you in: {said[:_TEXT_MAX]}")
        claims = await self._claims(asked["code"], pending.body["verifier"], pending.body["nonce"])
        grants = self.config.grants(claims)
        is_verified = claims.get("email_verified") is True and bool(claims.get("email"))
        who = claims["email"] if is_verified else claims["sub"]
        if grants is None:
            raise NoSession(f"The provider knows you as {str(who)[:_TEXT_MAX]}, but nothing of that lets you in here.")
        name = f"{'oidc' if is_verified else 'oidc-id'}:{who}"[:_TEXT_MAX]
        lasts_us = self.config.lasts // _MICROSECOND
        scopes = [str(one) for one in grants.granted]
        session = await open_foreign_session(client, name, self.config.issuer, scopes, lasts_us)
        return session, pending.body["to"]

    async def _claims(self, code: str, verifier: str, nonce: str) -> Mapping[str, Any]:
        from authlib.integrations.base_client import OAuthError

        metadata = await self._described()
        try:
            async with asyncio.timeout(_PATIENCE_S), self._asking() as asking:
                given = await asking.fetch_token(metadata["token_endpoint"], code=code, code_verifier=verifier)
        except OAuthError as error:
            log.warning("the provider %s refuses a code: %s", self.config.issuer, error)
            raise NoSession("The provider does not take the code that it gave. Try again.") from error
        except Exception as error:
            raise self._unreachable(error) from error
        return await self._checked(str(given.get("id_token", "")), nonce)

    async def _checked(self, id_token: str, nonce: str) -> Mapping[str, Any]:
        """The claims of an ID token, if the provider signed it, now, for us, and for this sign-in. Raises NoSession."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        rules = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": self.config.issuer},
            aud={"essential": True, "value": self.config.client_id},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
            sub={"essential": True},
        )
        try:
            try:
                found = jwt.decode(id_token, await self._known_keys(), algorithms=list(_ALGORITHMS))
            except (JoseError, ValueError):
                # It may have been signed with a key that is newer than those that are known here.
                found = jwt.decode(id_token, await self._known_keys(anew=True), algorithms=list(_ALGORITHMS))
            rules.validate(found.claims)
            if found.claims.get("azp", self.config.client_id) != self.config.client_id:
                raise ValueError("it is for another client")
        except (JoseError, ValueError) as error:
            log.warning("an ID token of %s is refused: %s", self.config.issuer, error)
            raise NoSession("What the provider says about you cannot be trusted. Try again.") from error
        claims: Mapping[str, Any] = found.claims
        return claims

    async def _described(self) -> dict[str, Any]:
        if self._metadata is None:
            found = await self._get(f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != self.config.issuer:
                log.error("%s says that it is the issuer %r", self.config.issuer, found.get("issuer"))
                raise NoSession("The provider is not the one that this server expects.")
            self._metadata = found
        return self._metadata

    async def _known_keys(self, *, anew: bool = False) -> Any:
        from joserfc.jwk import KeySet

        is_stale = anew and monotonic() - self._keys_at >= _KEYS_EVERY_S
        if self._keys is None or is_stale:
            keys: Any = await self._get((await self._described())["jwks_uri"])
            self._keys = KeySet.import_key_set(keys)
            self._keys_at = monotonic()
        return self._keys

    async def _get(self, url: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_PATIENCE_S), self._asking() as asking:
                answer = await asking.request("GET", url, withhold_token=True)
                found: dict[str, Any] = answer.raise_for_status().json()
                return found
        except Exception as error:
            raise self._unreachable(error) from error

    def _asking(self) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        return AsyncOAuth2Client(
            self.config.client_id,
            self.config.client_secret or None,
            token_endpoint_auth_method="client_secret_basic" if self.config.client_secret else "none",
            redirect_uri=self.config.redirect_uri,
            timeout=_PATIENCE_S,
        )

    def _unreachable(self, error: BaseException) -> NoSession:
        log.warning("the provider %s does not answer: %r", self.config.issuer, error)
        return NoSession("The provider does not answer as it should. Try again later, or sign in with a token.")


def _pending(state: str) -> str:
    """Where a sign-in stands among sessions: at an id that no session has."""
    return f"oidc-{hashlib.sha256(state.encode(errors='surrogateescape')).hexdigest()}"


__all__ = ["COOKIE", "PENDING", "Oidc", "OidcProvider"]
