"""Translation of many sources, decoded in batches of similar length and returned in their original order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..data import PAD  # fills short rows; masks are made from the lengths, so any id would do
from ..errors import ShapeError
from ..models import device_of, eval_mode
from ._base import DecoderTokens, EncoderDecoder, Hypothesis
from .beam import Beam, search
from .sampling import Sampling, sample


def batch_by_length(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices of inputs grouped by length, each batch of at most `batch_tokens` positions including padding, and of at least one input.

    The longest come first, so that a lack of memory shows at once.
    """
    batches: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= batch_tokens:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches


def iter_translations(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    options: Beam | Sampling = Beam(),  # noqa: B008  frozen
    *,
    batch_tokens: int = 4096,
    tokens: DecoderTokens = DecoderTokens(),  # noqa: B008  frozen
    want_weights: bool = False,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The index of each source with its hypotheses, as they become ready: batch by batch, the longest sources first.

    Args:
        model: encoder-decoder.
        sources: token ids of each source.
        options: beam search or sampling.
        batch_tokens: maximum number of source positions per batch, padding included.
        tokens: special tokens of the decoder.
        want_weights: keep the attention weights of every step.
    """
    empty = [number for number, source in enumerate(sources) if not len(source)]
    if empty:
        raise ShapeError(f"source {empty[0]} has no tokens; expected at least one: leave out empty sources, or end each with an end token")
    device = device_of(model)
    for numbers in batch_by_length([len(source) for source in sources], batch_tokens):
        rows = [list(sources[number]) for number in numbers]
        longest = max(map(len, rows))
        source_BM = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows], device=device)
        source_n_B = torch.tensor([len(row) for row in rows], device=device)
        with eval_mode(model), torch.no_grad():
            state = model.start(source_BM, source_n_B)
            if isinstance(options, Beam):
                found = search(model, state, options, source_n_B=source_n_B, tokens=tokens, want_weights=want_weights)
            else:
                drawn = sample(model, state, options, source_n_B=source_n_B, tokens=tokens, numbers=numbers, want_weights=want_weights)
                found = [[one] for one in drawn]
        yield from zip(numbers, found, strict=True)


def translate(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    options: Beam | Sampling = Beam(),  # noqa: B008  frozen
    *,
    batch_tokens: int = 4096,
    tokens: DecoderTokens = DecoderTokens(),  # noqa: B008  frozen
    want_weights: bool = False,
) -> list[list[Hypothesis]]:
    """The hypotheses of every source, in the order of the sources, best first. Ids in, ids out.

    A sample depends on the index of its source, not on its batch.

    Args:
        model: encoder-decoder.
        sources: token ids of each source.
        options: beam search or sampling.
        batch_tokens: maximum number of source positions per batch, padding included; it affects speed and memory only.
        tokens: special tokens of the decoder.
        want_weights: keep the attention weights of every step.
    """
    found = dict(iter_translations(model, sources, options, batch_tokens=batch_tokens, tokens=tokens, want_weights=want_weights))
    return [found[number] for number in range(len(sources))]
