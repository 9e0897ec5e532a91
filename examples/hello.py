import asyncio

from perdure import Engine, sleep, step, workflow


@step
async def greet(name: str) -> str:
    print("greeting", name)  # has a side effect, so it is in a step
    return f"hello {name}"


@workflow
async def welcome(name: str) -> str:
    greeting = await greet(name)
    await sleep(5)  # kill the process here, then start it again: it greets nobody twice
    return f"{greeting}, and welcome back"


async def main() -> None:
    async with Engine("sqlite:///hello.db") as engine:
        print(await engine.run(welcome("ada"), id="ada"))


asyncio.run(main())
