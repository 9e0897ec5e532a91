"""The cause reader: it reads the causes that failures refer to from the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from perdure.errors import StoreError
from perdure.models.cooperation.causes import KnownFailures, whole
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.row_codec import RowCodec
from perdure.ports import Store

log = logging.getLogger("perdure")


class CauseReader:
    """Returns failures with their causes, within the bounds of `whole`."""

    def __init__(self, store: Store, rows: RowCodec, known: KnownFailures | None = None) -> None:
        self._store = store
        self._rows = rows
        self._known = known or KnownFailures()

    async def whole(self, failure: Failure) -> Failure:
        """Return the failure with its causes. Raises StoreError."""
        return await whole(failure, self._read)

    async def for_code(self, failure: Failure) -> Failure:
        """Return the failure with its causes, for the code of a step.

        If the store does not answer, the failure keeps its references. A failure of the store must not fail the step.
        """
        try:
            return await self.whole(failure)
        except StoreError as error:
            log.warning("the causes of a failure could not be read and are left out: %s: %s", failure.line(), error)
            return failure

    async def _read(self, places: Sequence[str]) -> Mapping[str, Failure]:
        found = self._known.among(places)
        wanted = [(scope, int(seq)) for scope, _, seq in (p.rpartition("/") for p in places if p not in found)]
        for row in await self._store.events_at(wanted) if wanted else ():
            if row.exception is not None:
                failure = self._rows.read_failure(row.exception, row.scope, row.seq)
                found[f"{row.scope}/{row.seq}"] = failure
                if not failure.cut:
                    self._known.keep(failure)
        return found
