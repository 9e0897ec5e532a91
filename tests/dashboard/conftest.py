"""One browser, and one house with an engine and a server, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.dashboard.site import Eyes, House, Luck, browsing


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    Luck.has_come = False
    folder: Path = tmp_path_factory.mktemp("house")
    with House(folder).open() as house:
        yield house


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def eyes(browser: Browser, house: House) -> Iterator[Eyes]:
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    eyes = Eyes(page, house.url)
    yield eyes
    page.close()
    assert not eyes.complaints
