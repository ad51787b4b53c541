"""Change of a prediction when what attention chose is left out: a large weight alone does not show that a word mattered."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data import Tokenizer
from ..look import Maps
from ..models import Classifier, device_of
from ..train import to_device
from .special_tokens import Framed


@torch.no_grad()
def erasure_text(model: Classifier, labels: Sequence[str], tokenizer: Tokenizer, document: Framed, maps: Maps) -> str:
    """The predicted label and its probability; that probability without the sentence and without the word of the largest weight."""
    word, sentence = (int(maps.view(layer).weights_BHLM[0, 0, 0].argmax()) for layer in ("document", "sentences"))
    begins = sum(document.segments[:sentence])
    p_N = _probabilities(model, document)
    best = int(p_N.argmax())
    lines = [f"{labels[best]}\t{float(p_N[best]):.4f}"]
    for what, first, end in (
        (f"sentence {sentence + 1}", begins, begins + document.segments[sentence]),
        (f"the word {tokenizer.strings([document.ids[word]])[0].strip()!r}", word, word + 1),
    ):
        rest = _without(document, first, end)
        if rest.ids:
            lines.append(f"\t{float(_probabilities(model, rest)[best]):.4f} without {what}, which has the largest weight")
    return "\n".join(lines)


def _without(document: Framed, first: int, end: int) -> Framed:
    """The document without the tokens from `first` up to `end`."""
    left, at = list[int](), 0
    for n in document.segments:
        left.append(n - max(0, min(end, at + n) - max(first, at)))
        at += n
    return Framed(document.ids[:first] + document.ids[end:], [n for n in left if n])


def _probabilities(model: Classifier, document: Framed) -> Tensor:
    """p_N of the labels."""
    segment_T = torch.arange(len(document.segments)).repeat_interleave(torch.tensor(document.segments))
    given = torch.tensor([document.ids]), torch.tensor([len(document.ids)]), segment_T[None]
    return model(*to_device(given, device_of(model))).softmax(-1)[0].cpu()
