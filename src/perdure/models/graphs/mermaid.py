"""A graph as a Mermaid flowchart. Many pages and editors can draw Mermaid."""

from __future__ import annotations

from typing import Final

from perdure.models.graphs.picture import Arrow, Picture, Shown, counts

_SHAPES: Final = {
    "artifact": ("[(", ")]"),
    "human": ("[/", "/]"),
    "set": ("(", ")"),
    "terminate": ("(((", ")))"),
    "timer": ("([", "])"),
    "wait": ("([", "])"),
    "workflow": ("[[", "]]"),
}
# Characters that Mermaid, or Markdown in it, would read as syntax.
_ESCAPED: Final = {ord(sign): f"#{ord(sign)};" for sign in '"#<>&`'}


def mermaid(picture: Picture) -> str:
    lines = ["flowchart TD"]
    lines += [f"    {_box(box)}" for box in picture.boxes]
    lines += [f"    {_arrow(arrow)}" for arrow in picture.arrows]
    active = [box.id for box in picture.boxes if box.tokens is not None and box.tokens.standing]
    failed = [box.id for box in picture.boxes if box.tokens is not None and box.tokens.failed and box.id not in active]
    for name, ids, style in (
        ("active", active, "fill:#dbeafe,stroke:#2563eb,color:#111827"),
        ("failed", failed, "fill:#fee2e2,stroke:#dc2626,color:#111827"),
    ):
        if ids:
            lines += [f"    classDef {name} {style}", f"    class {','.join(ids)} {name}"]
    return "\n".join(lines) + "\n"


def _box(box: Shown) -> str:
    match box.kind:
        case "start":
            return f'{box.id}(("start"))'
        case "end":
            return 'end_((("end")))'
        case "terminate":
            return f'{box.id}((("end of the run")))'
        case "join" | "fork":
            return f'{box.id}{{{{"{_text(box.title)}"}}}}'
        case "node":
            left, right = _SHAPES.get(box.tag, ("[", "]"))
            parts = [f"<b>{_text(box.title)}</b>", _text(box.caption), counts(box.tokens)]
            return f'{box.id}{left}"{"<br>".join(part for part in parts if part)}"{right}'


def _arrow(arrow: Arrow) -> str:
    line = "-.->" if arrow.is_error else "==>" if arrow.is_multiple else "-->"
    target = "end_" if arrow.target == "end" else arrow.target  # `end` is a keyword of Mermaid.
    label = f'|"{_text(arrow.label)}"|' if arrow.label else ""
    return f"{arrow.source} {line}{label} {target}"


def _text(text: str) -> str:
    return " ".join(text.split()).translate(_ESCAPED)
