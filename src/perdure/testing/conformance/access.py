"""Tokens and sessions: versions one after the other, sessions that are over go a few at a time."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from perdure.kernel.access import StoredSession, StoredToken
from perdure.testing.conformance.base import Rules


def a_token(version: int = 1, name: str = "ci", **other: Any) -> StoredToken:
    given: dict[str, Any] = {"digest": f"d-{version}", "actor": "ann", "at": 5, "body": '{"ü": 1}'} | other
    return StoredToken(name=name, version=version, **given)


def a_session(id: str, until: int, **other: Any) -> StoredSession:
    given: dict[str, Any] = {"actor": "ann", "at": 5, "body": "{}"} | other
    return StoredSession(id=id, until=until, **given)


class AccessRules(Rules):
    async def test_versions_of_a_token_come_one_after_the_other(self) -> None:
        async with self.opened() as store:
            assert await store.token("ci") is None
            assert await store.tokens() == []
            assert not await store.put_token(a_token(2))
            assert await store.put_token(a_token(1))
            assert await store.put_token(a_token(1, at=6))  # The same again: it was lost on the way back.
            assert not await store.put_token(a_token(1, digest="other"))
            assert await store.put_token(a_token(2))
            assert not await store.put_token(a_token(1))
            assert await store.put_token(a_token(1, "aa"))
            assert await store.token("ci") == a_token(2)
            assert [(one.name, one.version) for one in await store.tokens()] == [("aa", 1), ("ci", 2)]
            assert [one.name for one in await store.tokens(after="aa")] == ["ci"]
            assert [one.name for one in await store.tokens(limit=1)] == ["aa"]
            versions = [a_token(1, "aa"), a_token(1), a_token(2)]
            assert await store.token_versions() == versions
            assert await store.token_versions(after=("aa", 1), limit=1) == versions[1:2]
            assert await store.token_versions(after=("ci", 2)) == []

    async def test_of_those_who_write_the_same_version_at_once_one_succeeds(self) -> None:
        async with self.opened() as one, self.opened() as other:
            writing = [(one, other)[number % 2].put_token(a_token(1, digest=str(number))) for number in range(20)]
            assert sum(await asyncio.gather(*writing)) == 1

    async def test_the_last_use_of_a_token_is_kept_over_its_versions(self) -> None:
        async with self.opened() as store:
            await store.use_token("nobody", at=1)
            await store.put_token(a_token(1))
            await store.use_token("ci", at=70)
            await store.use_token("ci", at=60)
            assert await store.token("ci") == replace(a_token(1), used_at=70)
            await store.put_token(a_token(2))
            assert await store.token("ci") == replace(a_token(2), used_at=70)

    async def test_a_session_is_there_until_it_is_ended(self) -> None:
        async with self.opened() as store:
            assert await store.session("s") is None
            await store.put_session(a_session("s", 10))
            await store.put_session(a_session("s", 99, actor="bob"))
            assert await store.session("s") == a_session("s", 10)
            await store.end_session("s")
            await store.end_session("s")
            assert await store.session("s") is None

    async def test_sessions_that_are_over_go_the_oldest_first(self) -> None:
        async with self.opened() as store:
            for number in range(10):
                await store.put_session(a_session(f"s-{number}", until=number))
            assert await store.purge_sessions(at=6, limit=0) == 0
            assert await store.purge_sessions(at=6, limit=4) == 4
            assert await store.session("s-3") is None
            assert await store.session("s-4") is not None
            assert await store.purge_sessions(at=6, limit=4) == 3
            assert await store.purge_sessions(at=6, limit=4) == 0
            assert await store.session("s-7") is not None
