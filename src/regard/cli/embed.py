"""Texts as vectors: embed."""

from __future__ import annotations

import json as json_
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from .. import files
from ..data.lines import Policy, Skipped
from ..errors import BadConfig, BadFile, NotSupported, count
from ._command import Command, check_writable, print_note

if TYPE_CHECKING:
    from ..runs import Run
    from ..tasks.embedding import Vectors

# PyTorch takes seconds to import, and help needs none of it: hence the imports inside functions.

KINDS = (".npy", ".jsonl")


@dataclass(frozen=True, kw_only=True)
class Embed(Command):
    """Write the vectors of texts, of length 1, and find the nearest texts.

    With a run of a sentence encoder, an encoder, a language model or a classifier, or a transformers directory. Without --out and --neighbors,
    JSON lines are printed.

    As in:  regard embed runs/nli sentences.txt --out vectors.npy
            regard embed downloads/all-MiniLM-L6-v2 questions.tsv --field question --neighbors 5
            regard embed runs/nli "A dog runs" "A cat sleeps"
            regard embed runs/nli sentences.txt --query "A dog runs" --neighbors 3
    """

    folder: Positional[Path]
    """Run directory, or a transformers directory."""
    data: Positional[tuple[str, ...]]
    """Texts, or one file of them: its lines; .tsv, .csv, .jsonl, .parquet (also .gz, .xz); hf:FOLDER, a dataset."""
    field: str = ""
    """Name of the column or field, or number of the column from 1; common names are recognized."""
    out: Path | None = None
    """Write the vectors here: .npy, an array with a row per text, or .jsonl, an object per text."""
    neighbors: int = 0
    """Print this many nearest texts of each, by cosine similarity; with --json as objects."""
    query: str | None = None
    """Print the nearest texts of this one, 5 if --neighbors is not given."""
    json: bool = False
    """Print JSON lines."""
    on_error: Policy = "stop"
    """Malformed and empty lines: stop with file and line number, or skip and count them."""
    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, mps; auto: a GPU, if there is one."""
    quiet: bool = False
    """No progress bar."""

    def run(self) -> None:
        from .. import load_run
        from ..tasks.embedding import embedder_of

        if self.neighbors < 0:
            raise BadConfig(f"--neighbors {self.neighbors}: expected 1 or more")
        if self.out is not None and self.out.suffix.lower() not in KINDS:
            raise NotSupported(f"--out {self.out}: the name must end in {' or '.join(KINDS)}")
        check_writable(self.out, "--out")
        skipped = Skipped(unit="line", on_error=self.on_error)
        total = sum(1 for _ in self._texts(skipped))  # every line is checked before a model is loaded
        if not total:
            raise BadFile(f"{' '.join(self.data)}: no text in it{f'; {skipped}' if len(skipped) else ''}")
        print_note(str(skipped) if len(skipped) else "")
        run: Run[Any] = load_run(self.folder, device=self.device)
        print_note(run.unfinished)
        embedder_of(run)  # or a refusal, before anything is written
        if self.out is not None and self.out.suffix.lower() == ".npy":
            self._write_array(run, total)
        elif self.out is not None:
            files.put(self.out, lambda draft: self._write_lines(run, total, draft))
        if self.neighbors or self.query is not None:
            self._print_nearest(run, total)
        elif self.out is None:
            for texts, vectors in self._embedded(run, total):
                for text, vector in zip(texts, vectors, strict=True):
                    print(_line(text, vector))
        if self.out is not None:
            print(f"wrote {self.out}: {count(total, 'vector')}", file=sys.stderr)

    def _texts(self, skipped: Skipped) -> Iterator[str]:
        """The arguments, unless there is one that names a file."""
        from ..data.text_lines import read_text_rows

        if len(self.data) == 1 and _names_file(self.data[0]):
            yield from read_text_rows(self.data[0], self.field, skipped)
            return
        if self.field:
            raise BadConfig(f"--field {self.field} is for a file, and {' '.join(map(repr, self.data))[:80]} is none; omit --field")
        if files_among := [one for one in self.data if Path(one).is_file()]:
            raise BadConfig(f"{files_among[0]} is a file among several arguments; give one file, or texts only")
        if not all(one.strip() for one in self.data):
            raise BadConfig("one of the texts is empty; leave it out")
        yield from self.data

    def _embedded(self, run: Run[Any], total: int) -> Iterator[tuple[list[str], Vectors]]:
        from ..tasks.embedding import embed
        from ..train.log import progress_for

        truncated = 0
        with progress_for(not self.quiet, self.quiet, transient=True) as progress:

            def note(done: int, cut: int) -> None:
                nonlocal truncated
                truncated = cut
                progress.update(f"{done:,} of {total:,} texts", done / total)

            yield from embed(run, self._texts(Skipped(unit="line", on_error=self.on_error)), note=note)
        if truncated:
            print_note(f"{count(truncated, 'text')} had more tokens than the model reads, and lost their end")

    def _write_array(self, run: Run[Any], total: int) -> None:
        """Chunk by chunk into a file of the final size, under a temporary name."""
        assert self.out is not None
        files.put(self.out, lambda draft: self._fill(run, total, draft))

    def _fill(self, run: Run[Any], total: int, draft: Path) -> None:
        import numpy as np

        array, at = None, 0
        for _, vectors in self._embedded(run, total):
            if array is None:
                array = np.lib.format.open_memmap(draft, mode="w+", dtype=np.float32, shape=(total, vectors.shape[1]))
            if at + len(vectors) > total:
                raise BadFile(f"{self.data[0]}: changed while it was read; start again once nothing else writes to it")
            array[at : at + len(vectors)] = vectors
            at += len(vectors)
        assert array is not None
        array.flush()

    def _write_lines(self, run: Run[Any], total: int, draft: Path) -> None:
        with draft.open("w", encoding="utf-8") as file:
            for texts, vectors in self._embedded(run, total):
                file.writelines(f"{_line(text, vector)}\n" for text, vector in zip(texts, vectors, strict=True))

    def _print_nearest(self, run: Run[Any], total: int) -> None:
        """Nearest texts of each text, or of the query, one line per neighbour: similarity, number of the text, the text."""
        import numpy as np

        from ..tasks.embedding import embed, nearest

        texts, parts = list[str](), list["Vectors"]()
        for some, vectors in self._embedded(run, total):
            texts += some
            parts.append(vectors)
        vectors_ND, k = np.concatenate(parts), self.neighbors or 5
        asked = texts if self.query is None else [self.query]
        queries_QD = vectors_ND if self.query is None else next(embed(run, [self.query]))[1]
        rows_QK, scores_QK = nearest(queries_QD, vectors_ND, k, own=0 if self.query is None else None)
        for text, rows, scores in zip(asked, rows_QK.tolist(), scores_QK.tolist(), strict=True):
            if self.json:
                found = [
                    {"row": row + 1, "similarity": round(score, 6), "text": texts[row]} for row, score in zip(rows, scores, strict=True)
                ]
                print(json_.dumps({"text": text, "neighbors": found}, ensure_ascii=False))
                continue
            print(text)
            for row, score in zip(rows, scores, strict=True):
                print(f"  {score:6.3f}  {row + 1:>{len(str(total))}}  {texts[row]}")


def _names_file(text: str) -> bool:
    """Return whether an argument is meant as the name of a file: it is there, or looks like one."""
    from ..data.arrow import is_dataset

    return is_dataset(text) or (len(text) < 4096 and Path(text).exists()) or bool(re.fullmatch(r"\S+\.\w{2,7}|\S*/\S*", text))


def _line(text: str, vector: Vectors) -> str:
    return json_.dumps({"text": text, "embedding": [round(float(x), 7) for x in vector]}, ensure_ascii=False)
