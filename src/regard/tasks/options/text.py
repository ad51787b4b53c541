"""Options of tasks on running text."""

from __future__ import annotations

from dataclasses import dataclass

from .shared import Files, TokenizerOptions

SUFFIXES = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson", ".parquet")  # as `data.text` reads them


@dataclass(frozen=True, kw_only=True)
class TextOptions(TokenizerOptions):
    """Data and vocabulary."""

    data: Files = "python-docs"
    """Files or folders: .txt, .jsonl (also .gz, .xz), .csv, .parquet; hf:FOLDER, a dataset; python-docs, the documentation of this Python."""
    field: str = "text"
    """Field or column that holds the text, where there are several; page.body reaches inside."""
    separator: str | None = None
    """A line that ends a document of a text file, as <|endoftext|>; "": a blank line; None: each file is one document."""
    suffixes: tuple[str, ...] = SUFFIXES
    """Suffixes of the files to read in a folder."""
    cache: str | None = None
    """Folder for the tokenized text, to share between runs; the run directory if not given."""
