"""Sign-in through an OpenID Connect provider: the authorization code flow with PKCE, state and nonce.

The browser that begins a sign-in keeps a cookie for ten minutes. The cookie has the page to show after the sign-in, and
a secret. The state, the nonce and the verifier are derived from this secret. So beginning a sign-in writes nothing to
the store, and any server can finish it. Nobody can make another person's browser finish it. The store remembers
finished sign-ins, so that each sign-in can be finished only once. This needs the extra `oidc`: authlib, joserfc and
httpx.
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
_KEYS_EVERY_S: Final = 60.0  # for an unknown key, the keys are read again, but not more often than this
_LEEWAY_S: Final = 60
_TEXT_MAX: Final = 200
# Only asymmetric signatures are accepted: no shared secrets, and no unsigned tokens.
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_LATE_US: Final = (PENDING + timedelta(seconds=_LEEWAY_S)) // _MICROSECOND
_EXCHANGES_MAX: Final = 8  # codes that are exchanged with the provider at the same time
_FAILED_FOR_S: Final = 5.0
_TO_CHARS_MAX: Final = 1_000
_DIGITS_MAX: Final = 18
_NO_ANSWER: Final = "The provider does not respond as expected. Try again later, or sign in with a token."
_TOO_LATE: Final = "This sign-in was begun in another browser, or too long ago. Try again."


@checked
@dataclass(frozen=True, kw_only=True)
class Oidc:
    """An OpenID Connect provider.

    `redirect_uri` is the URL https://…/ui/sign-in/oidc/callback of this server. Register it with the provider.

    `scopes` maps claims to scopes: {"groups": {"ops": "operate", "admins": "admin"}, "email": {"ann@example.com":
    "admin"}}. A claim may be a text or a list of texts. A person gets all scopes that match. If no scope matches, the
    sign-in fails. An email address counts only if the provider says that it is verified. If your provider never says
    so, set `trust_unverified_email`. `lasts` is how long a session is valid. A number means seconds. Raises
    InvalidArguments.
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
                raise InvalidArguments(f"{what} must be an https URL, or an http URL of localhost, not {url!r:.200}")
        if not self.client_id or "openid" not in self.request:
            raise InvalidArguments("Oidc() needs a client_id, and `openid` in request")
        if not timedelta(0) < span_of(self.lasts, "lasts") <= LASTS:
            raise InvalidArguments(f"lasts must be more than 0 and at most {LASTS}, not {self.lasts}")
        granted = [given for values in self.scopes.values() for given in values.values()]
        if not granted:
            raise InvalidArguments("scopes must name at least one claim: without any, nobody can sign in")
        for given in granted:
            if parse_scopes(given).is_restricted:
                raise InvalidArguments(
                    f"the dashboard shows everything, so it needs a scope for everything, not {given!r}"
                )

    def grants(self, claims: Mapping[str, Any]) -> Grants | None:
        """Return the scopes of a person with these claims. Return None if no claim matches."""
        found: list[str] = []
        for claim, values in self.scopes.items():
            if claim == "email" and not (self.trust_unverified_email or claims.get("email_verified") is True):
                continue  # The address is not verified, so it may belong to somebody else.
            has = claims.get(claim)
            for one in has if isinstance(has, list) else [has]:
                if isinstance(one, str) and one in values:
                    given = values[one]
                    found += [given] if isinstance(given, str) else given
        return parse_scopes(found) if found else None


class OidcProvider:
    """Sends requests to the provider. It reads the provider's metadata and keys when they are first needed. Then it
    keeps them.
    """

    def __init__(self, config: Oidc) -> None:
        # Raise the error at the start, and not when somebody signs in.
        if not (find_spec("authlib") and find_spec("joserfc")):
            raise Misuse("sign-in through a provider needs an extra: pip install 'perdure[oidc]'")
        self.config = config
        self._metadata: dict[str, Any] | None = None
        self._keys: Any = None
        self._keys_at = 0.0
        self._failed_at = -_FAILED_FOR_S
        self._exchanges = asyncio.Semaphore(_EXCHANGES_MAX)

    async def begin(self, client: AnyClient, to: str) -> tuple[str, str]:
        """Begin a sign-in.

        Return the URL to which the browser is sent, and the text that the browser must keep. Raises NoSession.
        """
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
        """Finish the sign-in of a browser that comes back from the provider.

        Return the id of a new session, and the page to show. Raises NoSession if the sign-in fails, or was finished
        before.
        """
        begun = _Begun.of(kept)
        state = asked.get("state", "").encode(errors="surrogateescape")
        if begun is None or not hmac.compare_digest(state, begun.made("state").encode()):
            raise NoSession(_TOO_LATE)
        is_late = not 0 <= client.credentials.now() - begun.at + _LEEWAY_S * 1_000_000 <= _LATE_US
        if is_late or await client.credentials.session(begun.ended) is not None:
            raise NoSession(_TOO_LATE)
        if asked.get("error") or not asked.get("code"):
            said = f"{asked.get('error', 'no code')} {asked.get('error_description', '')}".strip()
            raise NoSession(f"The provider refused the sign-in: {said[:_TEXT_MAX]}")
        claims = await self._claims(asked["code"], begun.made("verifier"), begun.made("nonce"))
        grants = self.config.grants(claims)
        is_verified = claims.get("email_verified") is True and bool(claims.get("email"))
        who = claims["email"] if is_verified else claims["sub"]
        if grants is None:
            raise NoSession(
                f"The provider knows you as {str(who)[:_TEXT_MAX]}, but none of your claims has a scope here."
            )
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
            log.warning("the provider %s refused a code: %s", self.config.issuer, error)
            raise NoSession("The provider refused its own code. Try again.") from error
        except Exception as error:
            raise self._unreachable(error) from error
        return await self._checked(str(given.get("id_token", "")), nonce)

    async def _checked(self, id_token: str, nonce: str) -> Mapping[str, Any]:
        """Return the claims of an ID token. Raises NoSession unless the provider has signed the token for this client
        and this sign-in, and the token is valid now."""
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
                # The provider may have signed the token with a new key that is not known here yet.
                found = jwt.decode(id_token, await self._known_keys(anew=True), algorithms=list(_ALGORITHMS))
            rules.validate(found.claims)
            if found.claims.get("azp", self.config.client_id) != self.config.client_id:
                raise ValueError("it was issued for another client")
        except (JoseError, ValueError) as error:
            log.warning("an ID token of %s was refused: %s", self.config.issuer, error)
            raise NoSession("The provider's ID token is not valid. Try again.") from error
        claims: Mapping[str, Any] = found.claims
        return claims

    async def _described(self) -> dict[str, Any]:
        if self._metadata is None:
            if monotonic() - self._failed_at < _FAILED_FOR_S:
                raise NoSession(_NO_ANSWER)  # For a short time after a failure, the provider is not asked again.
            try:
                found = await self._get(f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration")
            except NoSession:
                self._failed_at = monotonic()
                raise
            if found.get("issuer") != self.config.issuer:
                log.error("the metadata of %s name another issuer: %r", self.config.issuer, found.get("issuer"))
                raise NoSession("The provider's metadata name another issuer than this server expects.")
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
        log.warning("the provider %s does not respond: %r", self.config.issuer, error)
        return NoSession(_NO_ANSWER)


class _Begun(Struct, frozen=True):
    """A sign-in that was begun. The browser keeps the text of the sign-in. Only a browser that has this text can finish
    the sign-in, because the provider sees only values that are derived from the secret. The state is derived from the
    whole text, so nobody can change a part of the text.
    """

    secret: str
    at: int
    to: str

    @property
    def text(self) -> str:
        where = self.to if len(self.to) <= _TO_CHARS_MAX else ""
        return f"{self.secret}.{self.at}.{urlsafe_b64encode(where.encode()).decode().rstrip('=')}"

    @classmethod
    def of(cls, text: str) -> _Begun | None:
        """Return the sign-in that a text describes. Return None if this class did not make the text."""
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
        """Return 256 bits for a purpose. They are derived from the secret and the whole text."""
        made = hmac.digest(self.secret.encode(), f"{purpose} {self.text}".encode(), "sha256")
        return urlsafe_b64encode(made).decode().rstrip("=")

    @property
    def ended(self) -> str:
        """Return the id of the stored row that says that the sign-in was finished.

        No session of a person has this id.
        """
        return f"oidc-{hashlib.sha256(self.made('ended').encode()).hexdigest()}"


def _is_safe(url: str) -> bool:
    """Return whether data that is sent to this URL cannot be read on its way."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:  # The text is not a URL.
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


__all__ = ["COOKIE", "PENDING", "Oidc", "OidcProvider"]
