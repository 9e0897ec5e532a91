"""Texts that mean harm where something reads them as more than text, and every place of the API where a text goes.

The places come from the OpenAPI document: a route that is added tomorrow is attacked tomorrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

MARK = "/tmp/perdure-was-here"
# One text for many readers: SQL in either kind of quotes, Python's three ways of formatting, and the way back up.
SNEAKY = "x'\"); select 1/0 --{0.x}%(x)s%n${x!}../"
SHELL = f"x;$(touch {MARK});`touch {MARK}`"
TEXTS = (
    SNEAKY, SHELL,
    "' or '1'='1", "'; drop table runs; --", '"; delete from records; --', "1; select pg_sleep(9)",
    "') union select 1--", "{{7*7}}", "${7*7}", "#{7*7}", "{% for x in ().__class__.__mro__ %}{% endfor %}",
    "<%= 7*7 %>", "%(name)s%n%x", "{0.__class__}", "$(touch /tmp/perdure-was-here)",
    "`touch /tmp/perdure-was-here`", "; cat /etc/passwd", "| id", "&& id", "../../../../etc/passwd",
    "..\\..\\windows\\win.ini", "file:///etc/passwd", "/proc/self/environ", "http://169.254.169.254/",
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "javascript:alert(1)", "<svg/onload=alert(1)>",
    "x\r\nset-cookie: evil=1", "x\r\n\r\n<html>", "\u2028alert(1)", "\u202eevil", "\ufeffx", "\x1b[2Jx", "*)(uid=*",
    "x' and '1'='2", "$where: 1", "{$gt: ''}", "__proto__", "constructor", "__class__", "null", "NaN", "-1", "0",
    "1e309", "perdure.errors:EngineBug", "os:system", "__main__:x", "!!python/object/apply:os.system ['id']",
    "input.x", "true || true",
)  # fmt: skip


class Attack(NamedTuple):
    """One request with one text in one place."""

    method: str
    path: str
    place: str
    text: str
    params: dict[str, str]
    headers: dict[str, str]
    body: Any


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def filled(path: str, operation: dict[str, Any], place: str = "", text: str = "") -> str:
    """The path with its parameters: of something that is not there, and the text in one place."""
    for one in operation.get("parameters", ()):
        if one["in"] == "path":
            value = text if one["name"] == place else "nobody"
            path = path.replace(f"{{{one['name']}}}", quote(value, safe="").replace(".", "%2E"))
    return path


def fields(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request's body, with their schemas."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema", {})
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    found: dict[str, Any] = schema.get("properties", {})
    return found


def body_of(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any] | None:
    """A body in which every field is a text, if there is to be one."""
    if "requestBody" not in operation:
        return None
    return {name: "nobody" for name, schema in fields(document, operation).items() if schema.get("type") == "string"}


def attacks(document: dict[str, Any]) -> Iterator[Attack]:
    """Every text in every place of every operation: parameters of the path and the query, headers, fields of bodies."""
    for method, path, operation in operations(document):
        places = [(one["in"], one["name"]) for one in operation.get("parameters", ())]
        places += [("body", name) for name in fields(document, operation)]
        places += [("header", "If-Match"), ("header", "X-Forwarded-For")]
        for where, name in dict.fromkeys(places):
            for text in TEXTS:
                body = body_of(document, operation)
                headers = {"If-Match": "*"}
                params: dict[str, str] = {}
                if where == "query":
                    params[name] = text
                elif where == "header" and text.isascii() and text.isprintable():
                    headers[name] = text
                elif where == "body":
                    body = {**(body or {}), name: text}
                elif where == "header":
                    continue
                yield Attack(
                    method, filled(path, operation, name if where == "path" else "", text), f"{where} {name}", text,
                    params, headers, body,
                )  # fmt: skip
