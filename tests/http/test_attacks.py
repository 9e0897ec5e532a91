"""Every route, with texts that mean harm in every place. Who may use which route is in test_matrix.

The places come from the OpenAPI document. A part of the texts is sent in CI, all of them in `make soak`.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.ports import Store
from tests.http.attacks import MARK, SHELL, SNEAKY, Attack, attacks
from tests.http.site import Site, site, told

MakeStore = Callable[[], Store]
SOME, PARTS = 50, 24


def drawn(every: list[Attack]) -> list[Attack]:
    """Some of the attacks: each place gets two texts that mean harm to most readers, and some get a third one."""
    sneaky = [attack for attack in every if attack.text == SNEAKY]
    shell = [attack for attack in every if attack.text == SHELL]
    return [*sneaky, *shell, *random.Random(18).sample(every, SOME)]


async def send_all(here: Site, chosen: list[Any]) -> Counter[int]:
    statuses: Counter[int] = Counter()
    async with httpx.AsyncClient(
        base_url=here.url, headers=dict(here.http.headers), timeout=60, trust_env=False
    ) as http:
        for attack in chosen:
            answer = await http.request(
                attack.method, attack.path, params=attack.params, headers=attack.headers, json=attack.body
            )
            statuses[answer.status_code] += 1
            place = f"{attack}: {answer.status_code} {answer.text[:300]}"
            assert answer.status_code < 500, place
            assert "set-cookie" not in answer.headers, place
            assert "text/html" not in answer.headers.get("content-type", ""), place
            assert "root:x:0" not in answer.text, place
            assert answer.headers["x-content-type-options"] == "nosniff", place
    return statuses


SOAK = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.mark.parametrize("part", ["some", *(pytest.param(number, marks=SOAK) for number in range(PARTS))])
async def test_no_text_is_taken_for_more_than_text(
    make_store: MakeStore, part: int | str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(make_store, stream_s_max=0.02) as here:
        document = told(await here.http.get("/openapi.json"))
        every = list(attacks(document))
        chosen = every[part::PARTS] if isinstance(part, int) else drawn(every)
        before = await here.start("sleeps", "untouched")
        statuses = await send_all(here, chosen)
        # Nothing was dropped, and nobody who was not named was touched.
        assert (await here.run("untouched"))["input"] == before["input"]
        await here.start("greet", "still", name="ada")
        assert (await here.until("still", "succeeded"))["output"] == "hello ada"
    assert not Path(MARK).exists()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    print(f"{len(chosen)} of {len(every)} injections: {dict(statuses)}")  # noqa: T201 - for the record
