"""One engine of the fleet: `python -m tests.chaos.engines URL DIRECT FOLDER`, until standard input is closed.

`URL` is the way to the store that faults are made on, `DIRECT` the one that none are.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from perdure import Engine, Limits
from tests.chaos.record import Record
from tests.chaos.witness import witness_of
from tests.chaos.work import Surroundings, Work
from tests.fleet.load import MESSAGES, OPEN, opened


async def main(url: str, direct: str, folder: Path) -> None:
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    around = Surroundings(Record(folder, "engine"), witness_of(direct))
    work = Work(is_plain=url.startswith("sqlite"))

    def engine() -> Engine:
        # These kills are no run's fault: however often one is hit in a row, it must not be set aside as poison.
        return Engine(
            url,
            workflows=work.workflows,
            resources={Surroundings: lambda: around},
            limits=Limits(recoveries_max=1_000_000, grace_s=1),
        )

    made = await opened(engine)
    MESSAGES.info(OPEN)
    await words.read()
    await made.shutdown()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(message)s", level=logging.INFO)
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
