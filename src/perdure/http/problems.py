"""What goes wrong, as HTTP tells it: one table of codes, and every error of Perdure in it.

An answer that says no is `application/problem+json` (RFC 9457) with a `code` that does not change between versions. An
error's code is its class's name, `run_not_found` for RunNotFound; its status is that of the nearest class in _STATUS.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from msgspec import Struct

from perdure import errors
from perdure.errors import PerdureError

log = logging.getLogger("perdure.http")

MEDIA_TYPE: Final = "application/problem+json"

_STATUS: Final[dict[type[PerdureError], int]] = {
    errors.Misuse: 422,
    errors.UnknownWorkflow: 404,
    errors.RunNotFound: 404,
    errors.NotPublished: 404,
    errors.DeadLetterNotFound: 404,
    errors.ArtifactNotFound: 404,
    errors.TaskNotFound: 404,
    errors.RecordNotFound: 404,
    errors.RunExists: 409,
    errors.RunFinished: 409,
    errors.RunNotWaiting: 409,
    errors.KeyReused: 409,
    errors.RunNotRetryable: 409,
    errors.RunOwnedElsewhere: 409,
    errors.InvalidTransition: 409,
    errors.TaskClosed: 409,
    errors.TaskLost: 409,
    errors.ConcurrentModification: 412,
    errors.QueueFull: 429,
    errors.EngineStopped: 503,
    errors.Outcome: 409,
    errors.StoreError: 503,
    errors.EngineBug: 500,
    errors.RowDamaged: 500,
}

# What HTTP itself can say no for.
OWN: Final[dict[str, tuple[int, str]]] = {
    "invalid_request": (400, "the path, a parameter, a header or the body is not what the document says"),
    "unauthenticated": (401, "a token is needed, and none that is valid was given"),
    "forbidden": (403, "the token's scope does not allow this"),
    "local_only": (403, "there are no tokens yet, so only requests from this machine are answered"),
    "origin_refused": (403, "a page of another origin asked, and it is not among those allowed"),
    "not_found": (404, "there is nothing at this path"),
    "method_not_allowed": (405, "there is something at this path, but not for this method"),
    "body_too_large": (413, "the body is larger than the server takes"),
    "unsupported_media_type": (415, "what changes something is sent as application/json"),
    "precondition_required": (428, 'say which version is meant: If-Match with the ETag, or "*" for any'),
    "too_many_requests": (429, "slower, please: Retry-After says when"),
    "too_many_streams": (429, "as many streams are open as the server keeps: Retry-After says when to try again"),
    "internal": (500, "a bug: the server's log has the details"),
}
_OWN_BY_STATUS: Final = {
    400: "invalid_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "unsupported_media_type",
    429: "too_many_requests",
}

# Details that an error carries and that tell its caller something: ids, versions, paths.
_TOLD: Final = (
    "run_id", "key", "status", "event", "event_id", "letter_id", "task_id", "worker", "path", "kind", "name", "pending",
    "stream", "expected_version", "version",
)  # fmt: skip
_DETAIL_MAX_CHARS: Final = 2_000


class Problem(Struct, frozen=True, kw_only=True):
    """What went wrong. `code` is for programs, `detail` for people; `about` names what it is about."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    about: dict[str, Any]


class Refused(Exception):
    """HTTP's own no, with one of the codes of OWN."""

    def __init__(self, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.headers = dict(headers or {})


def code_of(error: type[PerdureError]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).lower()


def status_of(error: type[PerdureError]) -> int:
    return next(_STATUS[above] for above in error.__mro__ if above in _STATUS)


def every_error(above: type[PerdureError] = PerdureError) -> Iterator[type[PerdureError]]:
    for error in above.__subclasses__():
        if error.__module__ == errors.__name__:
            yield error
            yield from every_error(error)


def meanings() -> dict[str, str]:
    """What each error means, as the tree in perdure.errors has it."""
    lines = re.findall(r"^[\s│├└─]*(\w+)(?: \(\w+\) +| {2,})(.+)$", errors.__doc__ or "", re.MULTILINE)
    return dict(lines)


def table() -> list[tuple[str, int, str]]:
    """Every code there is, with its status and what it means: HTTP's own first."""
    known = meanings()
    own = [(code, status, meaning) for code, (status, meaning) in OWN.items()]
    return own + [(code_of(error), status_of(error), known[error.__name__]) for error in every_error()]


def problem(code: str, status: int, detail: str, about: Mapping[str, Any] | None = None) -> Problem:
    text = detail if len(detail) <= _DETAIL_MAX_CHARS else detail[:_DETAIL_MAX_CHARS] + "…"
    return Problem(
        type=f"urn:perdure:problem:{code}",
        title=code.replace("_", " "),
        status=status,
        code=code,
        detail=text,
        about=dict(about or {}),
    )


def own(refused: Refused) -> Problem:
    return problem(refused.code, OWN[refused.code][0], str(refused))


def encoded(told: Problem) -> bytes:
    """As UTF-8, whatever is in it: an error may quote a lone surrogate."""
    try:
        return msgspec.json.encode(told)
    except UnicodeEncodeError:
        safe = told.detail.encode(errors="backslashreplace").decode()
        return msgspec.json.encode(problem(told.code, told.status, safe))


def _response(told: Problem, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    return Response(encoded(told), status_code=told.status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


Asked = Request[Any, Any, Any]


def _perdure(_request: Asked, error: PerdureError) -> Response[bytes]:
    status = status_of(type(error))
    if status >= 500:
        log.error("a request failed: %s", error, exc_info=error)
    if isinstance(error, errors.EngineBug) and not isinstance(error, errors.RowDamaged):
        return _internal()
    about = {
        name: error.__dict__[name]
        for name in _TOLD
        if isinstance(error.__dict__.get(name, ...), (str, int, float, type(None)))
    }
    headers = {"retry-after": "1"} if status in (429, 503) else None
    return _response(problem(code_of(type(error)), status, str(error), about), headers)


def _refused(_request: Asked, refused: Refused) -> Response[bytes]:
    return _response(own(refused), refused.headers)


def _http(_request: Asked, error: HTTPException) -> Response[bytes]:
    if error.status_code >= 500:
        log.error("a request failed: %s", error, exc_info=error)
        return _internal()
    detail = error.detail
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        found = [f"{one.get('key', 'the request')}: {one.get('message', '')}" for one in error.extra]
        detail = "; ".join(found) or detail
    code = _OWN_BY_STATUS.get(error.status_code, "invalid_request")
    return _response(problem(code, OWN[code][0], detail), error.headers)


def _too_deep(_request: Asked, _error: RecursionError) -> Response[bytes]:
    return _response(own(Refused("invalid_request", "the body is nested too deeply")))


def _unforeseen(_request: Asked, error: Exception) -> Response[bytes]:
    log.error("a request failed: %s", error, exc_info=error)
    return _internal()


def _internal() -> Response[bytes]:
    return _response(problem("internal", 500, "something is wrong in the server; its log has the details"))


HANDLERS: Final[dict[int | type[Exception], Any]] = {
    PerdureError: _perdure,
    Refused: _refused,
    HTTPException: _http,
    RecursionError: _too_deep,
    Exception: _unforeseen,
}

# What may be answered to any request.
_ALWAYS: Final = ("invalid_request", "unauthenticated", "forbidden", "local_only", "too_many_requests")
_STORE: Final = (errors.StoreUnavailable, errors.EngineStopped)
_CHANGING: Final = ("origin_refused", "body_too_large", "unsupported_media_type")


def no(*why: type[PerdureError] | str, changes: bool = False) -> dict[int, ResponseSpec]:
    """The answers that say no, for a handler's `responses`: these, and those that any request may get. `changes` adds
    those that are for requests which change something."""
    codes: dict[int, list[str]] = {}
    for one in (*_ALWAYS, *(_CHANGING if changes else ()), *_STORE, *why):
        status, code = (OWN[one][0], one) if isinstance(one, str) else (status_of(one), code_of(one))
        codes.setdefault(status, []).append(code)
    return {
        status: ResponseSpec(
            data_container=Problem,
            generate_examples=False,
            description=", ".join(dict.fromkeys(found)),
            media_type=MEDIA_TYPE,
        )
        for status, found in sorted(codes.items())
    }


__all__ = ["HANDLERS", "MEDIA_TYPE", "MediaType", "Problem", "Refused", "encoded", "no", "own", "problem", "table"]
