"""The page at /: what this server is and how to ask it. It has no scripts and shows nothing secret, so it needs no API key."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

STYLE = "body{font:16px/1.5 system-ui,sans-serif;max-width:44em;margin:3em auto;padding:0 1em}pre,code{font-family:ui-monospace,monospace}pre{overflow-x:auto}"


def describe(routes: Iterable[Route]) -> list[str]:
    """Every route as one line: POST /v1/completions."""
    lines = []
    for route in routes:
        methods = sorted(set(route.methods or ()) - {"HEAD"})
        lines.append(f"{' '.join(methods)} {route.path.replace('{name:path}', 'NAME')}")
    return lines


def page(name: str, routes: Iterable[Route]) -> Response:
    lines = "".join(f"<li><code>{escape(line)}</code></li>" for line in describe(routes))
    curl = 'curl -s http://HOST/v1/completions -H \'Content-Type: application/json\' -d \'{"prompt": "Once", "max_tokens": 20}\''
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(name)}</title><style>{STYLE}</style></head><body><h1>{escape(name)}</h1><p>A model served by regard, as OpenAI's API. "
        f"Clients of OpenAI work with this address and <code>/v1</code> as their base URL.</p><ul>{lines}</ul><pre>{escape(curl)}</pre></body></html>"
    )
