"""How pages are made: templates, which escape everything, the forms of values that they share, and files."""

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
    # Without it a browser does not say where a form comes from.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "vary": "accept",
}
_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_SHOWN_CHARS_MAX: Final = 200_000


class MenuItem(Struct, frozen=True):
    """A page that every page leads to."""

    name: str
    title: str
    path: str


class Renderer:
    """Fills templates in. Everything is escaped, but for what a template itself, or code here, wrote as markup."""

    def __init__(self, menu: Iterable[MenuItem]) -> None:
        self._menu = list(menu)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Any] = self._templates.filters  # Jinja types it by its own
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
        """What pages load: content and media type, by name."""
        found = sorted((HERE / "static").iterdir())
        return {path.name: (path.read_bytes(), _KINDS[path.suffix]) for path in found if path.suffix in _KINDS}

    @cached_property
    def edition(self) -> str:
        """Changes with any of the files, so that browsers may keep each for ever."""
        digest = hashlib.sha256()
        for name, (content, _) in self.files.items():
            digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()[:12]

    def static(self, name: str) -> str:
        return f"{PATH}/static/{self.edition}/{name}"

    def page(self, name: str, values: Mapping[str, Any]) -> str:
        """A whole page."""
        return self._templates.get_template(f"{name}.html").render({"page": name, **values})

    def regions(self, name: str, values: Mapping[str, Any]) -> dict[str, str]:
        """Those parts of a page that change while somebody looks at it: its blocks whose name begins with live_."""
        template = self._templates.get_template(f"{name}.html")
        context = template.new_context({"page": name, **values})
        return {
            block.removeprefix("live_"): "".join(render(context))
            for block, render in template.blocks.items()
            if block.startswith("live_")
        }

    def told(
        self,
        status: int,
        title: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        caller: Any = None,
        back: str = PATH,
    ) -> Answer:
        """A page that says no, or that something went wrong."""
        body = self.page(
            "problem", {"title": title, "detail": detail, "status": status, "caller": caller, "back": back}
        )
        head = {**HEADERS, "content-type": "text/html; charset=utf-8", **(headers or {})}
        return Answer(status=status, headers=head, body=body.encode(errors="backslashreplace"))


def url(*parts: Any, **query: Any) -> str:
    """The address of a page: names and ids in it are encoded, whatever they are. A list of pairs at the end is what it
    is asked for, if a name comes several times."""
    pairs = [(name, value) for name, value in query.items() if value not in (None, "")]
    if parts and isinstance(parts[-1], list):
        *parts, many = parts  # type: ignore[assignment]
        pairs += many
    path = "/".join([PATH, *(quote(str(part), safe="") for part in parts)])
    return f"{path}?{urlencode(pairs)}" if pairs else path


def ago(when: datetime | None) -> Markup:
    """A time, which the page then tells as how long ago it was, or will be."""
    if when is None:
        return Markup("–")
    text = when.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" data-ago title="{} UTC">{}</time>').format(when.isoformat(), text, text)


def at(when: datetime | None) -> Markup:
    """A time of day, with the day."""
    if when is None:
        return Markup("–")
    text = when.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return Markup('<time datetime="{}" data-at title="{} UTC">{}</time>').format(when.isoformat(), text, text)


def json_text(value: Any) -> str:
    """A value as JSON for people to read; a very long one is cut."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}\n… {len(text):,} characters in all"


def json_line(value: Any, chars_max: int = 160) -> str:
    """A value as JSON in one line, cut if it is long."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def short(id: str) -> str:
    """An id as it is told apart in a list: of those that Perdure made, the end; others are somebody's own."""
    is_made = re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", id) is not None
    return f"…{id[-8:]}" if is_made else id


__all__ = ["CSP", "HEADERS", "PATH", "MenuItem", "Renderer", "ago", "at", "json_line", "json_text", "short", "url"]
