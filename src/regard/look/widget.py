"""The explorer in a notebook, as an anywidget; extra `[notebook]`."""

from __future__ import annotations

from functools import cache
from typing import Any

from .._extras import extra
from .explorer import record
from .html import bundle, pack, static_file
from .maps import Maps


@cache
def _widget_class() -> type[Any]:
    with extra("notebook"):
        import anywidget
        import traitlets

    class ExplorerWidget(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]
        _esm = bundle("widget.js")
        _css = static_file("style.css").decode()
        data = traitlets.Bytes(b"").tag(sync=True)

    return ExplorerWidget


def widget(maps: Maps, title: str = "", batch: int = 0) -> Any:
    """The explorer of these maps. All of the data goes to the page, so it also works in a saved notebook without a kernel."""
    return _widget_class()(data=pack(record(maps, title, batch=batch), title))
