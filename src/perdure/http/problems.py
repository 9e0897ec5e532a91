"""Errors as HTTP responses. One table has the codes of all errors of Perdure.

An error is `application/problem+json` (RFC 9457) with a `code` that does not change between versions. The code is made
from the name of the error's class: `run_not_found` for RunNotFound. _STATUS has the status for the error's class or for
its nearest base class.
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

# Errors of the HTTP layer itself.
OWN: Final[dict[str, tuple[int, str]]] = {
    "invalid_request": (400, "the path, a parameter, a header or the body does not fit the OpenAPI document"),
    "unauthenticated": (401, "the request has no valid token"),
    "forbidden": (403, "the token's scope does not allow this"),
    "local_only": (403, "there are no tokens yet: only requests from this machine are answered"),
    "origin_refused": (403, "the request comes from a page of an origin that is not allowed"),
    "not_found": (404, "there is nothing at this path"),
    "method_not_allowed": (405, "this path does not have this method"),
    "body_too_large": (413, "the body is larger than the server accepts"),
    "unsupported_media_type": (415, "a request that changes something must be application/json"),
    "precondition_required": (428, 'the request must name a version: If-Match with the ETag, or "*" for any'),
    "too_many_requests": (429, "too many requests: Retry-After says when to try again"),
    "too_many_streams": (429, "too many streams are open: Retry-After says when to try again"),
    "head_too_large": (431, "the path, the parameters and the headers together are larger than the server accepts"),
    "internal": (500, "a bug in the server: its log has the details"),
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

# Attributes of errors that a problem includes: ids, versions, paths.
_SHOWN: Final = (
    "run_id", "key", "status", "event", "event_id", "letter_id", "task_id", "worker", "path", "kind", "name", "pending",
    "stream", "expected_version", "version",
)  # fmt: skip
_DETAIL_MAX_CHARS: Final = 2_000


class Problem(Struct, frozen=True, kw_only=True):
    """An error. `code` is for programs, `detail` is for people, and `about` has the ids that the error is about."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    about: dict[str, Any]


class Refused(Exception):
    """The HTTP layer refuses a request, with one of the codes in OWN."""

    def __init__(self, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.headers = dict(headers or {})


def code_of(error: type[PerdureError]) -> str:
    """Return the code of an error: `run_not_found` for RunNotFound."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).lower()


def status_of(error: type[PerdureError]) -> int:
    """Return the HTTP status of an error."""
    return next(_STATUS[above] for above in error.__mro__ if above in _STATUS)


def every_error(above: type[PerdureError] = PerdureError) -> Iterator[type[PerdureError]]:
    """Return all errors of perdure.errors below a class."""
    for error in above.__subclasses__():
        if error.__module__ == errors.__name__:
            yield error
            yield from every_error(error)


def meanings() -> dict[str, str]:
    """Return the meaning of each error, taken from the docstring of perdure.errors."""
    lines = re.findall(r"^[\s│├└─]*(\w+)(?: \(\w+\) +| {2,})(.+)$", errors.__doc__ or "", re.MULTILINE)
    return dict(lines)


def table() -> list[tuple[str, int, str]]:
    """Return every code with its status and meaning. The codes of the HTTP layer come first."""
    known = meanings()
    own = [(code, status, meaning) for code, (status, meaning) in OWN.items()]
    return own + [(code_of(error), status_of(error), known[error.__name__]) for error in every_error()]


def problem(code: str, status: int, detail: str, about: Mapping[str, Any] | None = None) -> Problem:
    """Return a problem. A very long `detail` is cut."""
    text = detail if len(detail) <= _DETAIL_MAX_CHARS else detail[:_DETAIL_MAX_CHARS] + "…"
    return Problem(
        type=f"urn:perdure:problem:{code}",
        title=code.replace("_", " "),
        status=status,
        code=code,
        detail=text,
        about=dict(about or {}),
    )


def problem_of(error: PerdureError | Refused) -> Problem:
    """Return an error as a problem."""
    if isinstance(error, Refused):
        return own(error)
    if isinstance(error, errors.EngineBug) and not isinstance(error, errors.RowDamaged):
        return _internal_problem()
    about = {
        name: error.__dict__[name]
        for name in _SHOWN
        if isinstance(error.__dict__.get(name, ...), (str, int, float, type(None)))
    }
    return problem(code_of(type(error)), status_of(type(error)), str(error), about)


def own(refused: Refused) -> Problem:
    """Return the problem for a refusal of the HTTP layer."""
    return problem(refused.code, OWN[refused.code][0], str(refused))


def encoded(found: Problem) -> bytes:
    """Return a problem as JSON in UTF-8. If an error quotes a lone surrogate, the surrogate is escaped."""
    try:
        return msgspec.json.encode(found)
    except UnicodeEncodeError:
        safe = found.detail.encode(errors="backslashreplace").decode()
        return msgspec.json.encode(problem(found.code, found.status, safe))


def _response(found: Problem, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    return Response(encoded(found), status_code=found.status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


Asked = Request[Any, Any, Any]


def _perdure(_request: Asked, error: PerdureError) -> Response[bytes]:
    status = status_of(type(error))
    if status >= 500:
        log.error("a request failed: %s", error, exc_info=error)
    headers = {"retry-after": "1"} if status in (429, 503) else None
    return _response(problem_of(error), headers)


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
    return _response(_internal_problem())


def _internal_problem() -> Problem:
    return problem("internal", 500, "the server has a bug; its log has the details")


HANDLERS: Final[dict[int | type[Exception], Any]] = {
    PerdureError: _perdure,
    Refused: _refused,
    HTTPException: _http,
    RecursionError: _too_deep,
    Exception: _unforeseen,
}

# Errors that any request may get.
_ALWAYS: Final = (
    "invalid_request", "unauthenticated", "forbidden", "local_only", "too_many_requests", "head_too_large"
)  # fmt: skip
_STORE: Final = (errors.StoreUnavailable, errors.EngineStopped)
_CHANGING: Final = ("origin_refused", "body_too_large", "unsupported_media_type")


def no(*why: type[PerdureError] | str, changes: bool = False) -> dict[int, ResponseSpec]:
    """Return the error responses of a handler, to pass as its `responses` argument. They are the given errors, and the
    errors that any request may get. `changes` adds the errors that only a request that changes something can get.
    """
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


__all__ = [
    "HANDLERS",
    "MEDIA_TYPE",
    "MediaType",
    "Problem",
    "Refused",
    "encoded",
    "no",
    "own",
    "problem",
    "problem_of",
    "table",
]
