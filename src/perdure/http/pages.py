"""The interface between the API and the pages that are served with it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from litestar.types import ControllerRouterHandler
from msgspec import Struct

from perdure.http.access import Access, Caller
from perdure.http.problems import Refused


class Answer(Struct, frozen=True, kw_only=True):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Pages(Protocol):
    """Pages for people. A browser sends no token in a header. So pages identify their callers themselves, and show
    errors as pages. Pages accept forms, so they must refuse forms that a page of another site has sent.
    """

    @property
    def handlers(self) -> Sequence[ControllerRouterHandler]:
        """The handlers of the pages. Each handler has a guard, as the handlers of the API have, unless everybody may
        see its page.
        """
        ...

    def covers(self, path: str) -> bool:
        """Whether a path belongs to the pages."""
        ...

    async def identify(
        self, access: Access, scope: MutableMapping[str, Any], headers: Mapping[str, str], peer: str | None
    ) -> Caller | None:
        """Return the caller, or None for a page that everybody may see. Raises Refused."""
        ...

    def refused(self, refused: Refused, scope: MutableMapping[str, Any]) -> Answer:
        """Return the response to a request that was refused."""
        ...


__all__ = ["Answer", "Pages"]
