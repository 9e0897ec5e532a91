"""Transactional steps that write numbers into a table, the same for both databases, and what tests ask about it."""

from __future__ import annotations

import asyncio
import inspect
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg

from perdure import Retry, Workflow, compensate, continue_as, current_step, resource, sleep, step, workflow
from perdure.models.functions.context import CurrentStep
from perdure.models.functions.define import Step

QUICK = Retry(attempts=3, initial=timedelta(milliseconds=1), jitter=0)
LONG = Retry(attempts=3, initial=timedelta(hours=1), jitter=0)


class Script:
    """What the bodies of steps do after they have written, and how often they began. Where the table is."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.begun = 0
        self.url = ""  # of the database, for steps that need another connection
        self.act: Callable[[CurrentStep], Any] = lambda _: None


def plain_step(**options: Any) -> Step[[int], int]:
    @step(name="note", transactional=True, **options)
    def note(number: int) -> int:
        script, me = resource(Script), current_step()
        script.begun += 1
        me.connection.execute(f"insert into {script.table} (number) values (?)", (number,))
        done = script.act(me)
        return number if done is None else done

    return note


def async_step(**options: Any) -> Step[[int], int]:
    @step(name="note", transactional=True, **options)
    async def note(number: int) -> int:
        script, me = resource(Script), current_step()
        script.begun += 1
        await me.connection.execute(f"insert into {script.table} (number) values ($1)", number)
        done = script.act(me)
        if inspect.isawaitable(done):
            done = await done
        return number if done is None else done

    return note


@step(retry=Retry.never())
async def fail() -> None:
    raise LookupError("as asked")


class Program:
    """Workflows that take numbers down, with steps as their database wants them."""

    def __init__(self, make: Callable[..., Step[[int], int]]) -> None:
        note = make(retry=QUICK)
        patient = make(retry=LONG)
        timed = make(retry=QUICK, timeout=timedelta(minutes=1))
        late = make(retry=QUICK, total_timeout=timedelta(minutes=1))

        @workflow(name="one")
        async def one(number: int) -> int:
            return await note(number)

        @workflow(name="several")
        async def several(count: int) -> int:
            return sum([await note(number) for number in range(1, count + 1)])

        @workflow(name="together")
        async def together(count: int) -> int:
            numbers = await asyncio.gather(*[note(number) for number in range(1, count + 1)], sleep(1))
            return sum(number for number in numbers if isinstance(number, int))

        @workflow(name="slowly")
        async def slowly(number: int) -> int:
            return await patient(number)

        @workflow(name="in_time")
        async def in_time(number: int) -> int:
            return await timed(number)

        @workflow(name="all_in_time")
        async def all_in_time(number: int) -> int:
            return await late(number)

        @workflow(name="undone")
        async def undone(number: int) -> int:
            await note(number)
            await compensate(note(-number))
            await fail()
            return number

        @workflow(name="onward")
        async def onward(number: int) -> int:
            await note(number)
            if number > 1:
                await continue_as(onward(number - 1))
            return number

        @workflow(name="then_fails")
        async def then_fails(number: int) -> int:
            done = await note(number)
            await fail()
            return done

        @workflow(name="given_up")
        async def given_up(number: int) -> str:
            try:
                async with asyncio.timeout(60):
                    await note(number)
            except TimeoutError:
                return "too late"
            return "in time"

        self.note = note
        self.one = one
        self.several = several
        self.together = together
        self.slowly = slowly
        self.in_time = in_time
        self.all_in_time = all_in_time
        self.undone = undone
        self.onward = onward
        self.then_fails = then_fails
        self.given_up = given_up

    @property
    def workflows(self) -> list[Workflow[Any, Any]]:
        return [found for found in vars(self).values() if isinstance(found, Workflow)]


class World:
    """A database with a table of the user's, empty at first. `fresh` gives stores in it that have no runs."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.script = Script(f"notes_{uuid4().hex}")
        self.program = Program(plain_step if kind == "sqlite" else async_step)

    @property
    def options(self) -> dict[str, Any]:
        return {"resources": {Script: lambda: self.script}}

    async def fresh(self) -> str:
        """The URL of a store without runs, and a new table beside it."""
        raise NotImplementedError

    async def numbers(self, url: str) -> list[int]:
        return [number for (number,) in await self.ask(url, f"select number from {self.script.table} order by 1")]

    async def staged(self, url: str) -> int:
        """How much is staged."""
        raise NotImplementedError

    async def ask(self, url: str, sql: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError


class SqliteWorld(World):
    def __init__(self, folder: Path, empty: Path) -> None:
        super().__init__("sqlite")
        self._folder = folder
        self._empty = empty
        self._count = 0

    async def fresh(self) -> str:
        self._count += 1
        path = shutil.copyfile(self._empty, self._folder / f"notes-{self._count}.db")
        url = f"sqlite:///{path}"
        await self.ask(url, f"create table {self.script.table} (number integer)")
        return url

    async def staged(self, url: str) -> int:
        found: int = (await self.ask(url, "select count(*) from staged"))[0][0]
        return found

    async def ask(self, url: str, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()


class PostgresWorld(World):
    def __init__(self, empty_schema: Callable[[], str]) -> None:
        super().__init__("postgres")
        self._empty_schema = empty_schema

    async def fresh(self) -> str:
        url = self._empty_schema()
        self.script.table = f"notes_{uuid4().hex}"
        await self.ask(url, f"create table {self.script.table} (number bigint)")
        return url

    async def staged(self, url: str) -> int:
        schema = url.rpartition("schema=")[2].partition("&")[0]
        found: int = (await self.ask(url, f"select count(*) from {schema}.staged"))[0][0]
        return found

    async def ask(self, url: str, sql: str) -> list[tuple[Any, ...]]:
        driver: Any = asyncpg
        connection = await driver.connect(url.partition("?")[0])
        try:
            return [tuple(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()
