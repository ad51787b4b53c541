"""Rows of weights over sentences of words, drawn as the text itself, for terminals and as a picture.

A bar per sentence, and words shaded by √(weight of the sentence) × weight of the word, as Yang et al. 2016 do, so that the important words of a
less important sentence can still be seen.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._extras import extra
from .axes import colours, drawable, new_figure, set_title
from .layouts import Tree
from .map import Map
from .terminal import CAPTION, SHADES, display_width, head_matrix, readable, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SENTENCES = 40  # that are drawn: those with the largest weights
BARS = " ▏▎▍▌▋▊▉█"
BAR = 6  # columns of the longest bar
COLUMNS = 92  # characters per line of a picture
MARGIN = 14.0  # columns for its bars and their numbers
LINE = 0.19  # inches
_MARKS = (" ", "▁", "Ġ")  # that tokenizers put before a word


@dataclass(frozen=True)
class Placed:
    """A token of a drawn line."""

    text: str
    token: int
    column: int


@dataclass(frozen=True)
class DrawnSentence:
    weight: float
    lines: list[list[Placed]]
    left_out: int  # sentences before it that are not drawn


@dataclass(frozen=True)
class DrawnDocument:
    """Lines to draw, and shade_T between 0 and 1."""

    sentences: list[DrawnSentence]
    shade_T: Tensor
    largest_word: float
    left_out: int  # sentences after the last one

    @classmethod
    def of(cls, m: Map, batch: int, columns: int) -> DrawnDocument:
        """The sentences with the largest weights, each in lines of at most `columns` columns."""
        assert isinstance(m.layout, Tree)
        weights_T, labels, spans = head_matrix(m, batch)[0].abs(), m.labels(batch)[1], m.layout.spans
        weights_S = torch.stack([weights_T[first:end].sum() for first, end in spans])
        root_T = weights_S.sqrt().repeat_interleave(torch.tensor([end - first for first, end in spans]))
        shown_T = torch.where(root_T > 0, weights_T / root_T.clamp(min=1e-30), 0)
        top = float(shown_T.max())
        chosen = sorted(weights_S.argsort(descending=True, stable=True)[:MAX_SENTENCES].tolist())
        before = [-1, *chosen]
        drawn = [
            DrawnSentence(float(weights_S[s]), wrap(labels[spans[s][0] : spans[s][1]], spans[s][0], columns), s - before[n] - 1)
            for n, s in enumerate(chosen)
        ]
        return cls(drawn, shown_T / (top or 1.0), top, len(spans) - 1 - before[-1])

    @property
    def largest_sentence(self) -> float:
        return max(one.weight for one in self.sentences)


def pieces(labels: Seq[str]) -> list[tuple[bool, str]]:
    """Pair each token's text with whether a space comes before it, by the marks of tokenizers; without marks every token is a word."""
    marked = any(label[:1] in _MARKS for label in labels)
    found = []
    for label in labels:
        text = label.removeprefix("##").lstrip("".join(_MARKS)) if marked or label.startswith("##") else label
        space = label[:1] in _MARKS if marked else not label.startswith("##")
        found.append((space, readable(text.rstrip(" ") or "␣", 40)))
    return found


def wrap(labels: Seq[str], first: int, columns: int) -> list[list[Placed]]:
    """The tokens from number `first` on, in lines of at most `columns` columns."""
    lines: list[list[Placed]] = [[]]
    column = 0
    for n, (space, text) in enumerate(pieces(labels)):
        column += int(space and column > 0)
        if column and column + display_width(text) > columns:
            lines.append([])
            column = 0
        lines[-1].append(Placed(text, first + n, column))
        column += display_width(text)
    return lines


def document_text(m: Map, batch: int = 0, columns: int | None = None) -> str:
    """One row of weights over sentences of words, for terminals: the weight of each sentence as a number and a bar, shades below its words."""
    margin = BAR + 7
    width = max((columns or shutil.get_terminal_size((100, 30)).columns) - margin, 20)
    drawn = DrawnDocument.of(m, batch, width)
    shades, top = drawn.shade_T.tolist(), drawn.largest_sentence or 1.0
    lines = [title(m)]
    for one in drawn.sentences:
        lines += [" " * margin + _left_out(one.left_out)] if one.left_out else []
        head = f"{one.weight:5.3f} {_bar(one.weight / top)} "
        for placed in one.lines:
            lines += [head.ljust(margin) + _written(placed, [p.text for p in placed])]
            below = _written(placed, [_shade(shades[p.token]) * display_width(p.text) for p in placed])
            lines += [" " * margin + below] if below else []
            head = ""
    lines += [" " * margin + _left_out(drawn.left_out)] if drawn.left_out else []
    lines.append(
        f"{SHADES[-1]} = {drawn.largest_word:.2g}: √(weight of the sentence) × weight of the word; numbers and bars: weights of sentences"
    )
    return "\n".join([*lines, CAPTION])


def _written(placed: Seq[Placed], texts: Seq[str]) -> str:
    """Texts at the columns of these tokens."""
    line, at = "", 0
    for p, text in zip(placed, texts, strict=True):
        line += " " * (p.column - at) + text
        at = p.column + display_width(p.text)
    return line.rstrip()


def _shade(share: float) -> str:
    return SHADES[min(round(share * (len(SHADES) - 1)), len(SHADES) - 1)]


def _bar(share: float) -> str:
    eighths = max(round(share * 8 * BAR), int(share > 0))
    return ("█" * (eighths // 8) + BARS[eighths % 8]).strip().ljust(BAR)


def _left_out(sentences: int) -> str:
    return f"… {sentences:,} {'sentence' if sentences == 1 else 'sentences'} of smaller weight"


def draw_document(m: Map, batch: int = 0) -> Figure:
    """The sentences with the largest weights; the darkest word has the largest √(weight of its sentence) × weight in it."""
    with extra("look"):
        from matplotlib.patches import Rectangle

    drawn = DrawnDocument.of(m, batch, COLUMNS)
    shades, top, colour = drawn.shade_T.tolist(), drawn.largest_sentence or 1.0, colours(False)
    lines = sum(len(one.lines) + bool(one.left_out) for one in drawn.sentences) + bool(drawn.left_out)
    figure = new_figure(11.0, LINE * (lines + 0.5 * len(drawn.sentences)) + 1.0)
    axis = figure.subplots()
    y = 0.0
    for one in drawn.sentences:
        y = _draw_gap(axis, y, one.left_out)
        tall = len(one.lines)
        axis.add_patch(Rectangle((-1.0 - 8.0 * one.weight / top, y + 0.1), 8.0 * one.weight / top, tall - 0.2, color="tab:orange"))
        axis.text(-9.6, y + 0.5, f"{one.weight:.3f}", ha="right", va="center", fontsize=8)
        for line in one.lines:
            for p in line:
                shade = shades[p.token]
                wide = display_width(p.text)
                axis.add_patch(Rectangle((p.column - 0.3, y + 0.04), wide + 0.6, 0.92, color=colour.to_rgba(shade * 0.85), linewidth=0))
                (text,), style = drawable([p.text])
                style["fontfamily"] = ["DejaVu Sans Mono", *style["fontfamily"]]
                axis.text(
                    p.column + wide / 2,
                    y + 0.5,
                    text,
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if shade > 0.7 else "0.1",
                    **style,
                )
            y += 1
        y += 0.5
    y = _draw_gap(axis, y, drawn.left_out)
    axis.set_xlim(-MARGIN, COLUMNS + 1)
    axis.set_ylim(max(y, 1.0), -0.2)
    axis.set_axis_off()
    set_title(figure, m, "bars: weights of sentences; shades: √(weight of the sentence) × weight of the word")
    return figure


def _draw_gap(axis: object, y: float, sentences: int) -> float:
    """A line for sentences that are not drawn; the next y."""
    if not sentences:
        return y
    axis.text(0, y + 0.5, _left_out(sentences), va="center", fontsize=8, color="0.45")  # type: ignore[attr-defined]
    return y + 1.5
