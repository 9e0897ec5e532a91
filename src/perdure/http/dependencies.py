"""The dependencies of handlers, which they get in addition to their parameters."""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from perdure.engine import AnyClient
from perdure.http.access import Access
from perdure.http.measures import Measures
from perdure.http.streams import Streams

Asked = Request[Any, Any, Any]
TheAccess = NamedDependency[Access]
TheClient = NamedDependency[SkipValidation[AnyClient]]  # msgspec does not accept a union of two of our classes
TheMeasures = NamedDependency[Measures]
TheStreams = NamedDependency[Streams]

__all__ = ["Asked", "TheAccess", "TheClient", "TheMeasures", "TheStreams"]
