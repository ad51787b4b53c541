"""A document with attention on two levels: over the words of each sentence, and over sentences.

| map | a row | its columns |
|---|---|---|
| `words` | per sentence | all tokens; weights are zero outside the sentence |
| `sentences` | the document | the sentences |
| `document` | the document | all tokens: weight of the sentence × weight of the word in it, which sums to one |

Drawn as the text itself: a bar per sentence, and words shaded by √(weight of the sentence) × weight of the word, as Yang et al. 2016 do, so that
the important words of a less important sentence can still be seen.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ShapeError
from .layouts import Layout, Sequence, Tree
from .map import Map
from .maps import Maps
from .terminal import CAPTION, SHADES, display_width, head_matrix, readable, title

MAX_SENTENCES = 40  # that are drawn: those with the largest weights
BARS = " ▏▎▍▌▋▊▉█"
BAR = 6  # columns of the longest bar
_MARKS = (" ", "▁", "Ġ")  # that tokenizers put before a word


def document_maps(maps: Maps, tokens: Seq[str], lengths: Seq[int]) -> Maps:
    """The three maps above, of a capture of one document: first a batch of its sentences, then one row over them.

    `tokens` of the document in order, `lengths` of its sentences.
    """
    S, T = len(lengths), len(tokens)
    if len(maps.all) != 2 or (words := maps.all[0]).weights_BHLM.shape[0] != S or (over := maps.all[1]).keys != S or sum(lengths) != T:
        shapes = [tuple(m.weights_BHLM.shape) for m in maps.all]
        raise ShapeError(f"maps of shapes {shapes}; expected two: of {S} sentences over their words, and of one document over them")
    ends = torch.tensor(lengths).cumsum(0).tolist()
    spans = [(end - n, end) for n, end in zip(lengths, ends, strict=True)]
    weights_ST = torch.zeros(S, T)
    for s, (first, end) in enumerate(spans):
        weights_ST[s, first:end] = words.read(0, 1, s)[:, 0].mean(0)[: end - first]
    weights_1S = over.read(0, 1)[:, 0].mean(0)[None]
    starts = [_label(tokens[first:end]) for first, end in spans]
    document, tree = ["document"], Tree(spans)
    return Maps(
        [
            _map("words", words, weights_ST, starts, tokens, tree),
            _map("sentences", over, weights_1S, document, starts, Sequence()),
            _map("document", over, weights_1S @ weights_ST, document, tokens, tree),
        ]
    )


def _map(layer: str, like: Map, weights_LM: Tensor, queries: Seq[str], keys: Seq[str], layout: Layout) -> Map:
    return Map(
        layer=layer,
        mechanism=like.mechanism,
        call=0,
        run=like.run,
        heads=(0,),
        rows=tuple(range(len(queries))),
        columns=tuple(range(len(keys))),
        queries=len(queries),
        weights_BHLM=weights_LM[None, None],
        normalised=True,
        query_labels=(tuple(queries),),
        key_labels=(tuple(keys),),
        layout=layout,
    )


def _label(tokens: Seq[str], longest: int = 24) -> str:
    """The beginning of a sentence."""
    text = "".join((" " if space else "") + piece for space, piece in pieces(tokens[:longest])).strip()
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


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
    """Whether a space comes before each token, and how it is written: by the marks of tokenizers, or every token is a word."""
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
        lines += [_gap(one.left_out, margin)] if one.left_out else []
        head = f"{one.weight:5.3f} {_bar(one.weight / top)} "
        for placed in one.lines:
            lines += [head.ljust(margin) + _written(placed, [p.text for p in placed])]
            below = _written(placed, [_shade(shades[p.token]) * display_width(p.text) for p in placed])
            lines += [" " * margin + below] if below else []
            head = ""
    lines += [_gap(drawn.left_out, margin)] if drawn.left_out else []
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


def _gap(sentences: int, margin: int) -> str:
    return f"{' ' * margin}… {sentences:,} {'sentence' if sentences == 1 else 'sentences'} of smaller weight"
