"""The notebooks: every cell runs, what it prints is what is stored, and pictures are where they were."""

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = ("implementation_self_attention", "scaled_dot_product_attention", "rnn_with_attention", "form_transformer")


def load_runner():
    spec = importlib.util.spec_from_file_location("notebooks_execute", FOLDER / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def plain(outputs: list[dict]) -> list[tuple[str, str]]:
    """(text, kind of picture) of each output."""
    found = []
    for output in outputs:
        data = output.get("data", {})
        found.append(("".join(output.get("text", data.get("text/plain", ""))), "image/png" if "image/png" in data else ""))
    return found


def test_every_figure_is_shown():
    pictures = {name: [kind for cell in read(name)["cells"] for _, kind in plain(cell.get("outputs", ())) if kind] for name in NOTEBOOKS}
    drawn = {name: sum("plt.show()" in "".join(cell["source"]) for cell in read(name)["cells"]) for name in NOTEBOOKS}
    assert sum(map(len, pictures.values())) == 12 and sum(drawn.values()) == 7
    assert all(len(pictures[name]) > drawn[name] for name in NOTEBOOKS)  # and attention maps, which show themselves


def test_there_are_these():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_outputs_are_those_that_jupyter_shows(name, tmp_path, monkeypatch):
    """In a fresh process, with the backend of Jupyter's kernel; a figure that is not shown would be missing here as it is there."""
    monkeypatch.chdir(tmp_path)
    notebook = read(name)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (now, cell) in enumerate(zip(load_runner().run(notebook), cells, strict=True)):
        found, stored = plain(now), plain(cell["outputs"])
        if "varies" in cell["metadata"].get("tags", ()):  # numbers of a training depend on the processor; the cell asserts what must hold
            found, stored = ([kind for _, kind in each] for each in (found, stored))
        assert found == stored, f"{name}, code cell {number}: python notebooks/execute.py {name}"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_each_has_formulas_pictures_and_exercises_with_answers_and_is_small(name):
    cells = read(name)["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    pictures = [output for cell in cells for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})]
    assert text.startswith("# ") and text.count("$$") >= 2 and len(pictures) >= 2
    assert text.count("**Exercise") == text.count("<details>") >= 2
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 400_000
