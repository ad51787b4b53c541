"""Run notebooks and write their outputs into them: `python notebooks/execute.py` for all, or with names.

Cells run in IPython, in a fresh process with the backend that Jupyter's kernel chooses, so outputs are those that a reader gets. Of each output the
text and the PNG are kept: what is printed, values of last expressions, figures that are shown.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
Output = dict[str, Any]


def run(notebook: dict[str, Any]) -> list[list[Output]]:
    """The outputs of each code cell."""
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # as ipykernel sets it
    done = subprocess.run(
        [sys.executable, __file__, "--cells"], input=json.dumps(cells), capture_output=True, encoding="utf-8", env=environment
    )
    if done.returncode:
        raise RuntimeError(f"a cell failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    found: list[list[Output]] = json.loads(done.stdout)
    return found


def run_cells(cells: list[str]) -> list[list[Output]]:
    """The outputs of cells that run in this process."""
    from IPython.core.displayhook import CapturingDisplayHook
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell, found = InteractiveShell.instance(), []
    for cell in cells:
        with capture_output(display=False) as printed:
            shell.display_pub = CapturingDisplayPublisher(parent=shell)
            shell.display_trap.hook = CapturingDisplayHook(shell, shell.display_pub.outputs)
            result = shell.run_cell(cell)
        if not result.success:
            raise SystemExit(f"{cell}\n{printed.stdout}{printed.stderr}")
        outputs: list[Output] = []
        if printed.stdout:
            outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.stdout)})
        outputs += [{"output_type": "display_data", "data": _plain(one["data"]), "metadata": {}} for one in shell.display_pub.outputs]
        found.append(outputs)
    return found


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    png = data.get("image/png")
    kept: dict[str, Any] = {"text/plain": _lines(data["text/plain"])}
    return kept if png is None else kept | {"image/png": png if isinstance(png, str) else base64.b64encode(png).decode()}


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
    if sys.argv[1:] == ["--cells"]:
        print(json.dumps(run_cells(json.load(sys.stdin))))
    else:
        main(sys.argv[1:])
