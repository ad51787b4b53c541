"""Tiny data of every task, for tests and trials: options, a small model, and an input to predict. `write_example(task, folder)` writes it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
from PIL import Image

from regard.data.hershey import hershey
from regard.data.scenes import scenes
from regard.data.strokes import Writing
from regard.tasks import find_task

SMALL = {"width": 16, "heads": 2, "depth": 1, "hidden": 16}


@dataclass(frozen=True, kw_only=True)
class Example:
    options: Any
    settings: Mapping[str, Any]
    input: str
    broken: str | Callable[[Path], None] = ""  # a malformed line for the file of `options.data`, or what adds a malformed item to a copy


def write_example(task: Any, folder: Path) -> Example:
    """Tiny data of a task, written to a folder."""
    task = find_task(task)
    made = EXAMPLES[task.name](folder)
    return Example(**{**made, "options": task.Options(**made["options"])})


# -- text --------------------------------------------------------------------------------------------------------------


def text_file(folder: Path) -> str:
    path = folder / "text.jsonl"
    lines = (f'{{"text": "The number {n} is {"even" if n % 2 == 0 else "odd"}, and {n + 1} is not."}}\n' for n in range(60))
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def language(folder: Path) -> dict[str, Any]:
    options = {"data": text_file(folder), "tokenizer": "char", "context_length": 16, "batch_size": 8, "valid_tokens": 50}
    return {
        "options": options,
        "settings": {"width": 16, "heads": 2, "depth": 1},
        "input": "The number",
        "broken": '{"text": 7}\n',
    }


def masked(folder: Path) -> dict[str, Any]:
    options = {"data": text_file(folder), "tokenizer": "word", "vocab_size": 200, "max_length": 16, "batch_size": 8, "valid_rows": 4}
    return {"options": options, "settings": SMALL, "input": "The number [MASK] is even", "broken": '{"text": 7}\n'}


def translation(folder: Path) -> dict[str, Any]:
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{a} {b}\t{b} {a}\n" for a in numbers for b in numbers), encoding="utf-8")
    options = {"data": str(path), "tokenizer": "word", "vocab_size": 50, "batch_tokens": 64, "valid_sentences": 3}
    return {"options": options, "settings": {**SMALL, "depth": (1, 1)}, "input": "two nine", "broken": "one column\n"}


def summarization(folder: Path) -> dict[str, Any]:
    path, names = folder / "articles.tsv", ["Ada", "Bo", "Cyd", "Dee", "Eve", "Flo", "Gus", "Hal"]
    lines = (f"today {a} met {b} in town .\t{a} met {b}\n" for a in names for b in names if a != b)
    path.write_text("".join(lines), encoding="utf-8")
    options = {"data": str(path), "vocab_size": 12, "batch_tokens": 128, "valid_summaries": 2, "max_target_length": 8}
    settings = {"embedding": 8, "width": 8}
    return {"options": options, "settings": settings, "input": "today Zoe met Bo in town .", "broken": "no summary\t\n"}


def classify(folder: Path) -> dict[str, Any]:
    path = folder / "examples.tsv"
    path.write_text("".join(f"item {n} is {'fine' if n % 2 else 'broken'}\t{'good' if n % 2 else 'bad'}\n" for n in range(60)))
    options = {"data": str(path), "tokenizer": "word", "vocab_size": 100, "max_length": 16, "batch_size": 8}
    return {"options": options, "settings": SMALL, "input": "item 7 is fine", "broken": "no label\n"}


def label(folder: Path) -> dict[str, Any]:
    path = folder / "words.tsv"
    path.write_text("".join(f"item\tO\n{n}\tN\nis\tO\n{'fine' if n % 2 else 'broken'}\tJ\n\n" for n in range(60)))
    options = {"data": str(path), "tokenizer": "word", "vocab_size": 100, "max_length": 16, "batch_size": 8}
    return {"options": options, "settings": SMALL, "input": "item 7 is fine", "broken": "alone\n"}


def question_answering(folder: Path) -> dict[str, Any]:
    path, rows = folder / "questions.jsonl", []
    for n in range(60):
        context = f"the box is {('red', 'blue')[n % 2]} and the cup is {n}"
        answer, asked = (str(n), "cup") if n % 3 else (("red", "blue")[n % 2], "box")
        start = context.rindex(answer) if n % 3 else context.index(answer)
        rows.append({"id": n, "context": context, "question": f"the {asked}?", "answers": {"text": [answer], "answer_start": [start]}})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    broken = '{"id": 99, "context": "here", "question": "where?", "answers": {"text": ["there"], "answer_start": [0]}}\n'
    options = {"data": str(path), "tokenizer": "word", "vocab_size": 100, "max_length": 16, "stride": 4, "batch_size": 8}
    settings = {"embedding": 8, "width": 6, "steps": 2}
    return {"options": options, "settings": settings, "input": "the box?\tthe box is red and the cup is 7", "broken": broken}


# -- images ------------------------------------------------------------------------------------------------------------


def no_image(*name: str) -> Callable[[Path], None]:
    """Adds a file that is not an image."""

    def broken(folder: Path) -> None:
        folder.joinpath(*name).write_text("no image")

    return broken


def images(folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    for name, ends in (("dark", (0, 120)), ("light", (135, 255))):
        (folder / "images" / name).mkdir(parents=True)
        for n in range(30):
            Image.fromarray(generator.integers(*ends, (8, 8), dtype=np.uint8)).save(folder / "images" / name / f"{n}.png")
    options = {"data": str(folder / "images"), "batch_size": 8, "shares": (0.1, 0.1)}
    first = str(folder / "images" / "light" / "0.png")
    return {"options": options, "settings": SMALL, "input": first, "broken": no_image("dark", "text.png")}


def video(folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    for name, step in (("left", -1), ("right", 1)):
        (folder / "clips" / name).mkdir(parents=True)
        for n in range(16):
            frame = generator.integers(0, 255, (8, 8), dtype=np.uint8)
            np.save(folder / "clips" / name / f"{n}.npy", np.stack([np.roll(frame, step * t, 1) for t in range(4)]))
    options = {"data": str(folder / "clips"), "frames": 4, "batch_size": 8, "shares": (0.1, 0.1)}
    first = str(folder / "clips" / "left" / "0.npy")
    return {"options": options, "settings": SMALL, "input": first, "broken": no_image("left", "text.gif")}


def draw(folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    for name in ("left", "right"):
        (folder / "images" / name).mkdir(parents=True)
        for n in range(20):
            pixels = generator.integers(0, 90, (8, 8), dtype=np.uint8)
            pixels[:5], pixels[5:, slice(0, 4) if name == "left" else slice(4, 8)] = 255 - n, 255 - n
            Image.fromarray(pixels).save(folder / "images" / name / f"{n}.png")
    options = {"data": str(folder / "images"), "batch_size": 8, "shares": (0.2, 0.2), "image_size": (8,)}
    settings = {"width": 8, "latent": 2, "glimpses": 2, "read_size": 2, "write_size": 3}
    first = str(folder / "images" / "left" / "0.png")
    return {"options": options, "settings": settings, "input": first, "broken": no_image("left", "text.png")}


def pixels(folder: Path) -> dict[str, Any]:
    (folder / "images").mkdir()
    generator = np.random.default_rng(0)
    for n in range(40):
        Image.fromarray(generator.integers(0, 4, (4, 4)).astype(np.uint8) * 85).save(folder / "images" / f"{n}.png")
    options = {"data": str(folder / "images"), "batch_size": 8}
    return {"options": options, "settings": SMALL, "input": str(folder / "images" / "3.png"), "broken": no_image("broken.png")}


def captioned_images(folder: Path, count: int = 40) -> str:
    """A small file of captions, and images beside it."""
    rows = []
    for n, one in enumerate(scenes(f"count={count},size=16,objects=1")):
        Image.fromarray(one.pixels).save(folder / f"{n}.png")
        rows += [f"{n}.png,{caption}\n" for caption in one.captions]
    (folder / "captions.csv").write_text("".join(["file,caption\n", *rows]), encoding="utf-8")
    return str(folder / "captions.csv")


NOWHERE = "nowhere.png,a red circle\n"


def captions(folder: Path) -> dict[str, Any]:
    options = {"data": captioned_images(folder), "image_size": 16, "batch_size": 8, "valid_images": 2, "shares": (0.1, 0.1)}
    settings = {"features": 8, "embedding": 8, "width": 8, "alignment": 8}
    return {"options": options, "settings": settings, "input": str(folder / "0.png"), "broken": NOWHERE}


def clip(folder: Path) -> dict[str, Any]:
    options = {"data": captioned_images(folder), "image_size": 16, "batch_size": 8, "shares": (0.3, 0.1)}
    text = {"width": 8, "heads": 2, "depth": 1, "hidden": 8, "embedding": 8}
    image = {"patch_size": 8, "image_width": 8, "image_heads": 2, "image_depth": 1, "image_hidden": 8}
    return {"options": options, "settings": text | image, "input": str(folder / "0.png"), "broken": NOWHERE}


def dalle(folder: Path) -> dict[str, Any]:
    options = {
        "data": captioned_images(folder),
        "image_size": 16,
        "batch_size": 12,
        "vae_share": 0.5,
        "max_length": 8,
        "shares": (0.1, 0.1),
    }
    settings = {"features": 8, "codes": 5, "width": 8, "heads": 2, "depth": 2}
    return {"options": options, "settings": settings, "input": "a red circle", "broken": NOWHERE}


# -- strokes -----------------------------------------------------------------------------------------------------------


def handwriting(folder: Path) -> dict[str, Any]:
    data = folder / "lines"
    data.mkdir()
    for n, (text, points, _) in enumerate(hershey("futural,count=20,words=1,letters=3")):
        (data / f"line-{n:02}.xml").write_text(to_iam(Writing(text, points)), encoding="utf-8")

    def broken(copy: Path) -> None:
        (copy / "line-99.xml").write_text("<WhiteboardCaptureSession><Stroke><Point x='1'/></Stroke>", encoding="utf-8")

    options = {"data": str(data), "shares": (0.2, 0.2), "batch_size": 4}
    settings = {"width": 8, "window_components": 2, "components": 2, "max_length": 60}
    return {"options": options, "settings": settings, "input": text, "broken": broken}


def to_iam(writing: Writing) -> str:
    """A line as an .xml file like those of IAM-OnDB, with its text."""
    at = writing.points[:, :2].cumsum(0)
    strokes = np.split(at, np.flatnonzero(writing.points[:-1, 2]) + 1)
    points = ["".join(f'<Point x="{x:.3f}" y="{y:.3f}"/>' for x, y in stroke) for stroke in strokes]
    body = "".join(f"<Stroke>{each}</Stroke>" for each in points)
    text = f"<Transcription><TextLine text={quoteattr(writing.text)}/></Transcription>"
    return f"<WhiteboardCaptureSession>{text}<StrokeSet>{body}</StrokeSet></WhiteboardCaptureSession>\n"


# -- sets and functions ------------------------------------------------------------------------------------------------


def sets(folder: Path) -> dict[str, Any]:
    path, generator = folder / "sets.jsonl", np.random.default_rng(0)
    rows = [generator.integers(0, 90, (generator.integers(1, 6), 2)).tolist() for _ in range(60)]
    path.write_text("".join(json.dumps({"set": row, "y": max(row)[0]}) + "\n" for row in rows), encoding="utf-8")
    settings = {"width": 8, "heads": 2, "depth": 1, "encoder": "isab", "points": 3, "seeds": 2}
    options = {"data": str(path), "batch_size": 8, "shares": (0.1, 0.1)}
    return {"options": options, "settings": settings, "input": "[[3, 1], [70, 2], [5, 5]]", "broken": '{"set": [[1, NaN]], "y": 1}\n'}


def functions(folder: Path) -> dict[str, Any]:
    path, generator = folder / "functions.csv", np.random.default_rng(0)
    rows = ["task,x,y\n"]
    for n in range(60):
        rows += [f"{n},{x:.3f},{np.sin(3 * x + n / 9):.3f}\n" for x in generator.uniform(-1, 1, 8)]
    path.write_text("".join(rows))
    settings = {"width": 8, "heads": 2, "latent": 4}
    options = {"data": str(path), "batch_size": 8, "shares": (0.1, 0.1), "context": (2, 5)}
    return {"options": options, "settings": settings, "input": "-0.5 0.2; 0.1 0.7; 0.9", "broken": "3,nan,1\n"}


# -- graphs ------------------------------------------------------------------------------------------------------------


def graphs(folder: Path) -> dict[str, Any]:
    data, one = folder / "graphs.jsonl", folder / "one.jsonl"
    lines = []
    for n in range(30):  # rings, whose nodes are labelled by what they and a neighbour hold
        count = 4 + n % 5
        nodes = [[float((n + m) % 2), float(m % 3)] for m in range(count)]
        lines.append(
            json.dumps(
                {
                    "edges": [[m, (m + 1) % count] for m in range(count)],
                    "nodes": nodes,
                    "labels": ["even", "odd"] * (count // 2) + ["even"] * (count % 2),
                }
            )
        )
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    one.write_text(lines[0] + "\n", encoding="utf-8")
    options = {"data": str(data), "shares": (0.2, 0.2), "batch_size": 8}
    broken = '{"edges": [[0, 9]], "nodes": [[1.0, 2.0]]}\n'
    return {"options": options, "settings": {"width": 8, "heads": 2}, "input": str(one), "broken": broken}


EXAMPLES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "language": language,
    "masked": masked,
    "translation": translation,
    "summarization": summarization,
    "classify": classify,
    "label": label,
    "question-answering": question_answering,
    "images": images,
    "video": video,
    "draw": draw,
    "pixels": pixels,
    "captions": captions,
    "clip": clip,
    "dalle": dalle,
    "handwriting": handwriting,
    "sets": sets,
    "functions": functions,
    "graphs": graphs,
}
