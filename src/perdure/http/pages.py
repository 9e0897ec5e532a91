"""What pages are to the API: something that is served beside it, and that tells in its own way who asks."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from litestar.types import ControllerRouterHandler
from msgspec import Struct

from perdure.http.access import Access, Caller
from perdure.http.problems import Refused


class Answer(Struct, frozen=True, kw_only=True):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Pages(Protocol):
    """Pages for people. A browser has no header with a token, so who asks is theirs to tell, and a no is told as a
    page. They take forms, so they must see to it that no page of somebody else's sends one."""

    @property
    def handlers(self) -> Sequence[ControllerRouterHandler]:
        """Each is guarded as those of the API are, unless everybody may see it."""
        ...

    def covers(self, path: str) -> bool:
        """Whether a path is theirs."""
        ...

    async def identify(
        self, access: Access, scope: MutableMapping[str, Any], headers: Mapping[str, str], peer: str | None
    ) -> Caller | None:
        """Who asks; None: nobody in particular, for what everybody may see. Raises Refused."""
        ...

    def refused(self, refused: Refused, scope: MutableMapping[str, Any]) -> Answer:
        """How they say no."""
        ...


__all__ = ["Answer", "Pages"]
