"""Signing in to the pages through an OpenID Connect provider: authorization code flow with PKCE, state and nonce.

What a sign-in needs to end is in a cookie of the browser that began it, for ten minutes: a secret, of which the state,
the nonce and the verifier are made, and where to go then. So beginning writes nothing, any server can end it, and
nobody can have another browser end a sign-in of theirs. The store remembers those that have ended, so that each ends
once. Needs the extra `oidc`: authlib, joserfc and httpx.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from perdure.dashboard.sessions import LASTS, NoSession, open_foreign_session
from perdure.engine import AnyClient
from perdure.errors import InvalidArguments, Misuse
from perdure.http.access import is_loopback
from perdure.http.scopes import Grants, parse_scopes
from perdure.values.arguments import Duration, checked, span_of

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
_LATE_US: Final = (PENDING + timedelta(seconds=_LEEWAY_S)) // _MICROSECOND
_EXCHANGES_MAX: Final = 8  # codes that are shown to the provider at the same time
_FAILED_FOR_S: Final = 5.0
_TO_CHARS_MAX: Final = 1_000
_DIGITS_MAX: Final = 18
_NO_ANSWER: Final = "The provider does not answer as it should. Try again later, or sign in with a token."
_TOO_LATE: Final = "Signing in was begun in another browser, or too long ago. Try again."


@checked
@dataclass(frozen=True, kw_only=True)
class Oidc:
    """A provider. `redirect_uri` is this server's https://…/ui/sign-in/oidc/callback, as the provider knows it.

    `scopes` says what people may do by their claims: {"groups": {"ops": "operate", "admins": "admin"}, "email":
    {"ann@example.com": "admin"}}. A claim may be a text or a list. All that match count, and whoever has none that
    matches does not get in. An email address counts only if the provider says that it is verified, unless
    `trust_unverified_email` is set for a provider that never says so. A session `lasts` so long; numbers are seconds.
    Raises InvalidArguments.
    """

    issuer: str
    client_id: str
    redirect_uri: str
    scopes: Mapping[str, Mapping[str, str | Sequence[str]]]
    client_secret: str = field(default="", repr=False)
    title: str = "single sign-on"
    request: Sequence[str] = ("openid", "email", "profile")
    lasts: Duration = LASTS
    trust_unverified_email: bool = False

    def __post_init__(self) -> None:
        for what, url in (("issuer", self.issuer), ("redirect_uri", self.redirect_uri)):
            if not _is_safe(url):
                raise InvalidArguments(f"the {what} is an https URL, or one of this machine, not {url!r:.200}")
        if not self.client_id or "openid" not in self.request:
            raise InvalidArguments("a provider needs a client_id, and `openid` among what is requested")
        if not timedelta(0) < span_of(self.lasts, "lasts") <= LASTS:
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
        self._failed_at = -_FAILED_FOR_S
        self._exchanges = asyncio.Semaphore(_EXCHANGES_MAX)

    async def begin(self, client: AnyClient, to: str) -> tuple[str, str]:
        """Where to send the browser, and what it has to keep. Raises NoSession."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        begun = _Begun(secrets.token_urlsafe(_SECRET_BYTES), client.credentials.now(), to)
        metadata = await self._described()
        url = prepare_grant_uri(
            metadata["authorization_endpoint"],
            client_id=self.config.client_id,
            response_type="code",
            redirect_uri=self.config.redirect_uri,
            scope=" ".join(self.config.request),
            state=begun.made("state"),
            nonce=begun.made("nonce"),
            code_challenge=create_s256_code_challenge(begun.made("verifier")),
            code_challenge_method="S256",
        )
        return str(url), begun.text

    async def finish(self, client: AnyClient, kept: str, asked: Mapping[str, str]) -> tuple[str, str]:
        """The id of a new session for whoever comes back from the provider, and where they wanted to go. Raises
        NoSession. A second time with the same state is too late."""
        begun = _Begun.of(kept)
        state = asked.get("state", "").encode(errors="surrogateescape")
        if begun is None or not hmac.compare_digest(state, begun.made("state").encode()):
            raise NoSession(_TOO_LATE)
        is_late = not 0 <= client.credentials.now() - begun.at + _LEEWAY_S * 1_000_000 <= _LATE_US
        if is_late or await client.credentials.session(begun.ended) is not None:
            raise NoSession(_TOO_LATE)
        if asked.get("error") or not asked.get("code"):
            said = f"{asked.get('error', 'no code')} {asked.get('error_description', '')}".strip()
            raise NoSession(f"The provider does not let you in: {said[:_TEXT_MAX]}")
        claims = await self._claims(asked["code"], begun.made("verifier"), begun.made("nonce"))
        grants = self.config.grants(claims)
        is_verified = claims.get("email_verified") is True and bool(claims.get("email"))
        who = claims["email"] if is_verified else claims["sub"]
        if grants is None:
            raise NoSession(f"The provider knows you as {str(who)[:_TEXT_MAX]}, but nothing of that lets you in here.")
        name = f"{'oidc' if is_verified else 'oidc-id'}:{who}"[:_TEXT_MAX]
        lasts_us = span_of(self.config.lasts, "lasts") // _MICROSECOND
        scopes = [str(one) for one in grants.granted]
        await client.credentials.put_session(begun.ended, {}, lasts_us=2 * _LATE_US, actor="oidc")
        session = await open_foreign_session(client, name, self.config.issuer, scopes, lasts_us)
        return session, begun.to

    async def _claims(self, code: str, verifier: str, nonce: str) -> Mapping[str, Any]:
        from authlib.integrations.base_client import OAuthError

        metadata = await self._described()
        try:
            async with asyncio.timeout(_PATIENCE_S), self._exchanges, self._asking() as asking:
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
            if monotonic() - self._failed_at < _FAILED_FOR_S:
                raise NoSession(_NO_ANSWER)  # Who asks again at once is not passed on to the provider.
            try:
                found = await self._get(f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration")
            except NoSession:
                self._failed_at = monotonic()
                raise
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
        return NoSession(_NO_ANSWER)


class _Begun(Struct, frozen=True):
    """A sign-in that has begun, as the browser keeps it. Only a browser that has this text can end the sign-in: the
    provider is shown what is made of the secret. The state is made of the whole text, so no part can be exchanged."""

    secret: str
    at: int
    to: str

    @property
    def text(self) -> str:
        where = self.to if len(self.to) <= _TO_CHARS_MAX else ""
        return f"{self.secret}.{self.at}.{urlsafe_b64encode(where.encode()).decode().rstrip('=')}"

    @classmethod
    def of(cls, text: str) -> _Begun | None:
        """None if nobody here has written the text."""
        secret, _, rest = text.partition(".")
        at, _, to = rest.partition(".")
        if len(secret) < _SECRET_BYTES or not at.isascii() or not at.isdigit() or len(at) > _DIGITS_MAX:
            return None
        try:
            where = urlsafe_b64decode(f"{to}{'=' * (-len(to) % 4)}".encode("ascii")).decode()
        except ValueError:
            return None
        found = cls(secret, int(at), where)
        return found if found.text == text else None

    def made(self, purpose: str) -> str:
        """A text of 256 bits for a purpose."""
        made = hmac.digest(self.secret.encode(), f"{purpose} {self.text}".encode(), "sha256")
        return urlsafe_b64encode(made).decode().rstrip("=")

    @property
    def ended(self) -> str:
        """Where it stands among sessions once it has ended: at an id that no session has."""
        return f"oidc-{hashlib.sha256(self.made('ended').encode()).hexdigest()}"


def _is_safe(url: str) -> bool:
    """Whether nobody on the way can read what is sent there."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:  # It looks like an address, and is none.
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


__all__ = ["COOKIE", "PENDING", "Oidc", "OidcProvider"]
