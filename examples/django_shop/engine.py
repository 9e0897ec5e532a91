"""Where the shop's workflows run: `python engine.py`, beside the web server, any number of times."""

import asyncio
import signal

from orders import checkout
from settings import PERDURE_STORE

from perdure import Engine


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Engine(PERDURE_STORE, workflows=[checkout]):
        await stop.wait()


asyncio.run(main())
