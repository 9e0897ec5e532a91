"""The renderer of pages: templates in which everything is escaped, filters that the templates share, and static
files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
import msgspec
from markupsafe import Markup
from msgspec import Struct

from perdure.dashboard.words import amount, bytes_of, duration, status_of, words_of
from perdure.http.pages import Answer

PATH: Final = "/ui"
HERE: Final = Path(__file__).parent
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": CSP,
    # With a stricter policy, a browser would not tell which page has sent a form.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "vary": "accept",
}
_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_SHOWN_CHARS_MAX: Final = 200_000


class MenuItem(Struct, frozen=True):
    """An item of the menu."""

    name: str
    title: str
    path: str


class Renderer:
    """Renders templates. Everything is escaped, except the markup that the templates and this package contain."""

    def __init__(self, menu: Iterable[MenuItem]) -> None:
        self._menu = list(menu)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Any] = self._templates.filters  # Jinja's own annotation is narrower
        filters.update(
            {
                "ago": ago,
                "at": at,
                "json": json_text,
                "line": json_line,
                "duration": duration,
                "amount": amount,
                "bytes": bytes_of,
                "short": short,
                "words": words_of,
            }
        )
        names: dict[str, Any] = self._templates.globals
        names.update(
            {
                "url": url,
                "static": self.static,
                "menu": self._menu,
                "status_of": status_of,
                "has_module": lambda name: f"{name}.js" in self.files,
            }
        )
        names["ui"] = self._templates.get_template("parts.html").module

    @cached_property
    def files(self) -> Mapping[str, tuple[bytes, str]]:
        """The files that pages load: content and media type, by name."""
        found = sorted((HERE / "static").iterdir())
        return {path.name: (path.read_bytes(), _KINDS[path.suffix]) for path in found if path.suffix in _KINDS}

    @cached_property
    def edition(self) -> str:
        """A digest of all files. The digest is part of their URLs, so browsers may cache the files forever."""
        digest = hashlib.sha256()
        for name, (content, _) in self.files.items():
            digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()[:12]

    def static(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{PATH}/static/{self.edition}/{name}"

    def page(self, name: str, values: Mapping[str, Any]) -> str:
        """Return a whole page."""
        return self._templates.get_template(f"{name}.html").render({"page": name, **values})

    def regions(self, name: str, values: Mapping[str, Any]) -> dict[str, str]:
        """Return the regions of a page that are updated. These are the blocks whose names begin with live_."""
        template = self._templates.get_template(f"{name}.html")
        context = template.new_context({"page": name, **values})
        return {
            block.removeprefix("live_"): "".join(render(context))
            for block, render in template.blocks.items()
            if block.startswith("live_")
        }

    def error(
        self,
        status: int,
        title: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        caller: Any = None,
        back: str = PATH,
    ) -> Answer:
        """Return a page that shows an error."""
        body = self.page(
            "problem", {"title": title, "detail": detail, "status": status, "caller": caller, "back": back}
        )
        head = {**HEADERS, "content-type": "text/html; charset=utf-8", **(headers or {})}
        return Answer(status=status, headers=head, body=body.encode(errors="backslashreplace"))


def url(*parts: Any, **query: Any) -> str:
    """Return the address of a page, with names and ids encoded. If the last part is a list of pairs, it is added to the
    query. In that list a name may occur several times."""
    pairs = [(name, value) for name, value in query.items() if value not in (None, "")]
    if parts and isinstance(parts[-1], list):
        *parts, many = parts  # type: ignore[assignment]
        pairs += many
    path = "/".join([PATH, *(quote(str(part), safe="") for part in parts)])
    return f"{path}?{urlencode(pairs)}" if pairs else path


def ago(when: datetime | None) -> Markup:
    """Return markup that shows a time. It shows how long ago the time was, or how soon it will be."""
    if when is None:
        return Markup("–")
    text = when.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" data-ago title="{} UTC">{}</time>').format(when.isoformat(), text, text)


def at(when: datetime | None) -> Markup:
    """Return markup that shows a time with its date."""
    if when is None:
        return Markup("–")
    text = when.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return Markup('<time datetime="{}" data-at title="{} UTC">{}</time>').format(when.isoformat(), text, text)


def json_text(value: Any) -> str:
    """Return a value as indented JSON. A very long text is cut."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}\n… {len(text):,} characters in all"


def json_line(value: Any, chars_max: int = 160) -> str:
    """Return a value as JSON on one line. A long text is cut."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def short(id: str) -> str:
    """Return the form of an id that lists show. Of an id that Perdure has made, only the end is shown. An id that a
    user has chosen stays whole.
    """
    is_made = re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", id) is not None
    return f"…{id[-8:]}" if is_made else id


__all__ = ["CSP", "HEADERS", "PATH", "MenuItem", "Renderer", "ago", "at", "json_line", "json_text", "short", "url"]
