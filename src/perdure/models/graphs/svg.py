"""A graph as an SVG picture, for pages, files and pull requests. Drawing it needs no other tool."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Final

from perdure.models.graphs.layout import Box, Layout, Line, Point, Route, arrange
from perdure.models.graphs.picture import Arrow, Picture, Shown, counts

_MARGIN: Final = 20.0
_TITLE_CHARS: Final = 32
_CAPTION_CHARS: Final = 36
_LABEL_CHARS: Final = 36
_NODE_HEIGHT: Final = 46.0
_NODE_WIDTH_MIN: Final = 96.0
_LABEL_HEIGHT: Final = 17.0
_BADGE_HEIGHT: Final = 18.0
_HEADER: Final = 9.0  # the length of an arrow's head
# XML cannot contain these characters.
_FORBIDDEN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE: Final = """
.perdure-graph{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;background:#ffffff}
.perdure-graph .paper{fill:#ffffff}
.perdure-graph .box{fill:#f8fafc;stroke:#64748b;stroke-width:1.3}
.perdure-graph .stripe{fill:#64748b}
.perdure-graph .llm .stripe,.perdure-graph .http .stripe{fill:#7c3aed}
.perdure-graph .human .stripe,.perdure-graph .remote .stripe{fill:#d97706}
.perdure-graph .timer .stripe,.perdure-graph .wait .stripe{fill:#0891b2}
.perdure-graph .function .stripe,.perdure-graph .action .stripe{fill:#2563eb}
.perdure-graph .workflow .stripe{fill:#16a34a}
.perdure-graph .terminate .stripe{fill:#dc2626}
.perdure-graph .title{font-size:13px;font-weight:600;fill:#0f172a}
.perdure-graph .caption{font-size:11px;fill:#475569}
.perdure-graph .line{fill:none;stroke:#475569;stroke-width:1.4}
.perdure-graph .head{fill:#475569}
.perdure-graph .error .line{stroke:#dc2626;stroke-dasharray:5 3}
.perdure-graph .error .head{fill:#dc2626}
.perdure-graph .back .line{stroke:#7c3aed}
.perdure-graph .back .head{fill:#7c3aed}
.perdure-graph .multiple .line{stroke-width:3.2}
.perdure-graph .label{font-size:11px;fill:#1e293b;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.perdure-graph .behind{fill:#ffffff;fill-opacity:.88}
.perdure-graph .bar{fill:#0f172a}
.perdure-graph .join-title{font-size:11px;font-weight:600;fill:#ffffff}
.perdure-graph .dot{fill:#0f172a}
.perdure-graph .ring{fill:none;stroke:#0f172a;stroke-width:1.6}
.perdure-graph .badge{fill:#e2e8f0}
.perdure-graph .badge-text{font-size:11px;fill:#0f172a}
.perdure-graph .active .box{fill:#dbeafe;stroke:#2563eb;stroke-width:2}
.perdure-graph .active .badge{fill:#2563eb}
.perdure-graph .active .badge-text{fill:#ffffff}
.perdure-graph .failed .box{fill:#fee2e2;stroke:#dc2626}
"""


def svg(picture: Picture, name: str) -> str:
    """Return the picture as a complete file."""
    boxes = [_size(box) for box in picture.boxes]
    lines = [_line(arrow) for arrow in picture.arrows]
    layout = arrange(boxes, lines)
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}"'
    space = "http://www.w3.org/2000/svg"
    parts = [
        f'<svg xmlns="{space}" class="perdure-graph" role="img" {size} viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{_escaped(name)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" {size}/>',
        f'<g transform="translate({_MARGIN:g} {_MARGIN:g})">',
        *_arrows(picture.arrows, lines, boxes, layout),
    ]
    for shown, box in zip(picture.boxes, boxes, strict=True):
        parts += _drawn(shown, box, layout.boxes[box.id])
    parts += ["</g>", "</svg>"]
    return "\n".join(parts) + "\n"


# ---------------------------------------------------------------------------------------------------------------------
# Boxes


def _size(box: Shown) -> Box:
    match box.kind:
        case "node":
            title = _wide(_cut(box.title, _TITLE_CHARS)) * 8.1
            caption = _wide(_cut(box.caption, _CAPTION_CHARS)) * 6.4
            badge = _badge_width(box)
            width = max(title, caption) + 36 + (badge + 12 if badge else 0)
            return Box(box.id, max(_NODE_WIDTH_MIN, width), _NODE_HEIGHT)
        case "join":
            return Box(box.id, max(64.0, _wide(box.title) * 6.6 + 26), 20.0)
        case "fork":
            return Box(box.id, 64.0, 6.0)
        case "start" | "end" | "terminate":
            return Box(box.id, 20.0, 20.0)


def _badge_width(box: Shown) -> float:
    badge = counts(box.tokens)
    return _wide(badge) * 6.6 + 14 if badge else 0.0


def _drawn(box: Shown, size: Box, middle: Point) -> list[str]:
    x, y = middle
    left, top = x - size.width / 2, y - size.height / 2
    about = f"<title>{_escaped(box.about)}</title>"
    if box.kind == "node":
        return _node(box, about, (left, top), size)
    open_ = f'<g class="{box.kind}" data-box="{_escaped(box.id)}">{about}'
    if box.kind == "join":
        frame = _rect("bar", left, top, size.width, size.height, 10)
        return [f"{open_}{frame}{_text('join-title', x, y + 4, box.title, is_centred=True)}</g>"]
    if box.kind == "fork":
        return [f"{open_}{_rect('bar', left, top, size.width, size.height, 3)}</g>"]
    if box.kind == "start":
        return [f'{open_}<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="8"/></g>']
    inner = f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="5"/>' if box.kind == "terminate" else ""
    return [f'{open_}<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="9"/>{inner}</g>']


def _node(box: Shown, about: str, corner: Point, size: Box) -> list[str]:
    left, top = corner
    tokens = box.tokens
    looks = ["node", *([box.tag] if re.fullmatch(r"[\w-]+", box.tag, re.ASCII) else [])]
    if tokens is not None and tokens.standing:
        looks.append("active")
    elif tokens is not None and tokens.failed:
        looks.append("failed")
    parts = [
        f'<g class="{" ".join(looks)}" data-box="{_escaped(box.id)}">{about}',
        _rect("box", left, top, size.width, size.height, 22 if box.tag in ("timer", "wait") else 7),
        _rect("stripe", left + 12, top + 11, 4, size.height - 22, 2),
        _text("title", left + 22, top + 20, _cut(box.title, _TITLE_CHARS)),
        _text("caption", left + 22, top + 36, _cut(box.caption, _CAPTION_CHARS)),
    ]
    if badge := counts(tokens):
        width = _badge_width(box)
        at, middle = left + size.width - width - 10, top + size.height / 2
        parts.append(_rect("badge", at, middle - _BADGE_HEIGHT / 2, width, _BADGE_HEIGHT, 9))
        parts.append(_text("badge-text", at + width / 2, middle + 4, badge, is_centred=True))
    return [*parts, "</g>"]


def _rect(look: str, x: float, y: float, width: float, height: float, rounding: float) -> str:
    frame = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{look}" {frame} rx="{rounding:g}"/>'


def _text(look: str, x: float, y: float, text: str, *, is_centred: bool = False) -> str:
    anchor = ' text-anchor="middle"' if is_centred else ""
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}"{anchor}>{_escaped(text)}</text>'


# ---------------------------------------------------------------------------------------------------------------------
# Arrows


def _line(arrow: Arrow) -> Line:
    if not arrow.label:
        return Line(arrow.source, arrow.target)
    return Line(arrow.source, arrow.target, _wide(_cut(arrow.label, _LABEL_CHARS)) * 6.7 + 8, _LABEL_HEIGHT)


def _arrows(arrows: Sequence[Arrow], lines: Sequence[Line], boxes: Sequence[Box], layout: Layout) -> list[str]:
    """Return all lines, followed by all labels, so that no line is drawn over a label."""
    sizes = {box.id: box for box in boxes}
    drawn: list[str] = []
    labels: list[str] = []
    for arrow, line, route in zip(arrows, lines, layout.routes, strict=True):
        label = route.label
        if arrow.source == arrow.target:
            path, tip, label = _loop(layout.boxes[arrow.source], sizes[arrow.source], line)
            is_upward: bool | None = None
        else:
            path, tip = _path(route), route.points[-1]
            is_upward = route.is_back
        looks = [name for name, is_so in (("error", arrow.is_error), ("multiple", arrow.is_multiple),
                                          ("back", route.is_back)) if is_so]  # fmt: skip
        about = f"<title>{_escaped(arrow.label)}</title>" if arrow.label else ""
        drawn.append(
            f'<g class="{" ".join(["edge", *looks])}" data-from="{_escaped(arrow.source)}" '
            f'data-to="{_escaped(arrow.target)}">{about}<path class="line" d="{path}"/>{_head(tip, is_upward)}</g>'
        )
        if arrow.label:
            x, y = label
            width, height = line.label_width, line.label_height
            behind = _rect("behind", x - width / 2, y - height / 2, width, height, 3)
            text = _text("label", x, y + 4, _cut(arrow.label, _LABEL_CHARS), is_centred=True)
            labels.append(f'<g class="note">{about}{behind}{text}</g>')
    return [*drawn, *labels]


def _path(route: Route) -> str:
    """Return a smooth path through a route's points. It begins and ends vertically, and leaves room for the arrow's
    head.
    """
    points = list(route.points)
    sign = -1 if route.is_back else 1
    points[-1] = (points[-1][0], points[-1][1] - sign * (_HEADER - 2))
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        if abs(x0 - x1) < 0.1:
            parts.append(f"L{x1:.1f} {y1:.1f}")
        else:
            middle = (y0 + y1) / 2
            parts.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
    return "".join(parts)


def _loop(middle: Point, size: Box, line: Line) -> tuple[str, Point, Point]:
    """Return a line from a box to itself, on the right side of the box."""
    right, y = middle[0] + size.width / 2, middle[1]
    out, end = right + 20, right + _HEADER - 2
    path = f"M{right:.1f} {y - 10:.1f}C{out:.1f} {y - 14:.1f} {out:.1f} {y + 14:.1f} {end:.1f} {y + 10:.1f}"
    return path, (right, y + 10), (out + 4 + line.label_width / 2, y)


def _head(tip: Point, is_upward: bool | None) -> str:
    x, y = tip
    if is_upward is None:
        points = [(x, y), (x + _HEADER, y - 4.5), (x + _HEADER, y + 4.5)]
    else:
        base = y + _HEADER if is_upward else y - _HEADER
        points = [(x, y), (x - 4.5, base), (x + 4.5, base)]
    return f'<path class="head" d="M{"L".join(f"{px:.1f} {py:.1f}" for px, py in points)}Z"/>'


# ---------------------------------------------------------------------------------------------------------------------
# Text


def _wide(text: str) -> float:
    """Return the width of a text, as a number of usual characters."""
    return sum(1.7 if unicodedata.east_asian_width(sign) in "WF" else 1.0 for sign in text)


def _cut(text: str, chars_max: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def _escaped(text: str) -> str:
    return escape(_FORBIDDEN.sub("\ufffd", text))
