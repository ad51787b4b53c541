"""GET /openapi.json and GET /docs: the routes and their fields, from the types that requests are checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from .page import STYLE
from .schemas import NEUTRAL, ModelRequest

REF = "#/components/schemas/{name}"
KINDS = {str: "string", bool: "boolean", dict: "object"}


def document(name: str, routes: Sequence[Route], requests: Mapping[str, type[ModelRequest]]) -> dict[str, Any]:
    """The description of the server's routes in OpenAPI 3.1.

    Args:
        name: name of the model.
        routes: routes of the server.
        requests: type of the body of each route that takes one, by its path.
    """
    kinds = list(requests.values())
    found, components = msgspec.json.schema_components(kinds, ref_template=REF)
    for kind in kinds:
        fields = components[kind.__name__]["properties"]
        fields |= {field: _neutral(field) for field in NEUTRAL if field not in fields}
    body_of = dict(zip(requests, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = route.path.replace(":path", "")
        for method in sorted(set(route.methods or ()) - {"HEAD"}):
            entry: dict[str, Any] = {
                "responses": {"200": {"description": "the answer"}, "default": {"$ref": "#/components/responses/Error"}}
            }
            if "{" in path:
                names = [part.partition("}")[0] for part in path.split("{")[1:]]
                entry["parameters"] = [{"name": one, "in": "path", "required": True, "schema": {"type": "string"}} for one in names]
            if path in body_of:
                entry["requestBody"] = {"required": True, "content": {"application/json": {"schema": body_of[path]}}}
                entry["summary"] = (requests[path].__doc__ or "").partition("\n")[0]
            paths.setdefault(path, {})[method.lower()] = entry
    error = {"type": "object", "properties": {key: {"type": ["string", "null"]} for key in ("message", "type", "param", "code")}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{name}, served by regard", "version": version("regard")},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                "Error": {
                    "description": "an error",
                    "content": {"application/json": {"schema": {"type": "object", "properties": {"error": error}}}},
                }
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _neutral(field: str) -> dict[str, Any]:
    """A field of other servers, with the values that are accepted."""
    known, about = NEUTRAL[field], {"description": "changes nothing"}
    return {"type": KINDS[known], **about} if isinstance(known, type) else {"enum": [*known, None], **about}


def page(description: Mapping[str, Any]) -> Response:
    """The description as a page, without scripts.

    Args:
        description: what `document` returns.
    """
    title, schemas = escape(description["info"]["title"]), description["components"]["schemas"]
    parts = [f"<h1>{title}</h1><p>The same for programs: <a href='/openapi.json'>/openapi.json</a>.</p>"]
    used: list[str] = []
    for path, methods in description["paths"].items():
        for method, entry in methods.items():
            parts.append(f"<h2><code>{escape(f'{method.upper()} {path}')}</code></h2><p>{escape(entry.get('summary', ''))}</p>")
            if "requestBody" in entry:
                shown = entry["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                used.append(shown)
                parts.append(_table(schemas[shown]))
    for other in sorted(set(schemas) - set(used)):
        fields = _table(schemas[other]) if "properties" in schemas[other] else f"<p>{_kind(schemas[other])}</p>"
        parts.append(f"<h2 id='{escape(other)}'>{escape(other)}</h2><p>{escape(schemas[other].get('description', ''))}</p>{fields}")
    style = f"{STYLE}td{{vertical-align:top;padding-right:1em}}"
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{style}</style></head><body>{''.join(parts)}</body></html>"
    )


def _table(schema: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_kind(field)}</td></tr>"
        for name, field in schema["properties"].items()
        if field.get("description") != "changes nothing"
    )
    return f"<table>{rows}</table>"


def _kind(field: Mapping[str, Any]) -> str:
    """A type with its bounds, in few words."""
    if "$ref" in field:
        name = escape(field["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in field:
        return " or ".join(_kind(one) for one in field["anyOf"])
    if "enum" in field:
        return escape(", ".join(map(repr, field["enum"])))
    words = [field.get("type", "anything")]
    words += [f"{sign} {field[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤"), ("exclusiveMaximum", "<")) if key in field]
    words += [f"at most {field[key]}" for key in ("maxLength", "maxItems", "maxProperties") if key in field]
    items = f" of {_kind(field['items'])}" if field.get("type") == "array" and "items" in field else ""
    return escape(" ".join(map(str, words))) + items
