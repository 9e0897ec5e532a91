"""What must not be found in a page, whatever it shows."""

from __future__ import annotations

from tests.dashboard.site import Eyes

FOUND = """[...document.querySelectorAll('*')].filter(one =>
    (one.localName === 'script' && !one.src) || (one.localName === 'img') || one.localName === 'iframe'
    || [...one.attributes].some(it => it.name.startsWith('on') || /^\\s*javascript:/i.test(it.value)
        && ['href', 'src', 'action', 'formaction'].includes(it.name))
).map(one => one.outerHTML)"""


def check(eyes: Eyes) -> None:
    assert eyes.page.evaluate(FOUND) == []
    assert eyes.page.evaluate("typeof window.x") == "undefined"
