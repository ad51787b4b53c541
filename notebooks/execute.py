"""Run notebooks and write their outputs into them: `python notebooks/execute.py` for all, or with names.

Cells run in one process, in order, as in Jupyter: what is printed and the value of the last expression are the output. Figures and attention
maps become PNG, everything else text.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent
Output = dict[str, Any]


def run(notebook: dict[str, Any]) -> list[list[Output]]:
    """The outputs of each code cell."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [run_cell("".join(cell["source"]), names) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> list[Output]:
    body = ast.parse(source)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(body, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[Output] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        outputs.append({"output_type": "display_data", "data": _shown(value), "metadata": {}})
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    if isinstance(value, Figure):
        file = io.BytesIO()
        value.savefig(file, format="png", dpi=80, bbox_inches="tight")
        return {"text/plain": ["a figure"], "image/png": base64.b64encode(file.getvalue()).decode()}
    if hasattr(value, "_repr_png_"):
        return {"text/plain": _lines(repr(value)), "image/png": base64.b64encode(value._repr_png_()).decode()}
    return {"text/plain": _lines(repr(value))}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(names: list[str]) -> None:
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        outputs = iter(run(notebook))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell |= {"outputs": next(outputs), "execution_count": None}
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
