"""Attention of a reader between question and passage, and the start and end of the answer that each of its steps says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..data import Tokenizer
from ..look import Indices, Layers, Map, Maps, capture
from ..models import Headed, Reader, device_of, eval_mode
from ..models.reader import Reading, answer_positions
from ..train import to_device
from .span_encoding import Answer, Windows, collate

NO_ANSWER = "∅"  # the label of position 0
PROBABILITIES = "answer"  # the name of the layer that holds the probabilities


@torch.no_grad()
def answer_maps(model: Reader, tokenizer: Tokenizer, windows: Windows, best: Answer | None, layers: Layers, heads: Indices) -> Maps:
    """The maps of the window with the answer; of none, or without an answer, of the first window.

    The last one, "answer", has a row per step: the probabilities of the first and of the last token. `layers=None` leaves out what is
    neither between question and passage nor the answer.
    """
    batch = to_device(collate(windows, np.array([_window_of(windows, best)])), device_of(model))
    row, possible_L = batch.ids_BL[0].tolist(), answer_positions(batch.n_B, batch.segment_BL)[0]
    labels = tokenizer.strings(row)
    passage = [NO_ANSWER, *(label for label, there in zip(labels[1:], possible_L[1:].tolist(), strict=True) if there)]
    body = model.body if isinstance(model, Headed) else model
    between = [path for path in model.between if path in dict(model.named_modules())]
    wanted = None if layers == PROBABILITIES else between or None if layers is None else layers
    with eval_mode(model), capture(body, wanted, heads) as maps:
        reading = model.steps(batch.ids_BL, batch.n_B, batch.segment_BL)
    question = labels[1 : int(windows.asked_W[0]) - 1]
    by_length = {len(row): labels, len(question): question, len(passage): passage}  # the row of an encoder, the texts of SAN
    drawn = [_labelled(m, by_length) for m in maps.all]
    answer = _probabilities(reading, possible_L, passage, drawn[-1])
    return Maps([answer] if layers == PROBABILITIES else [*drawn, answer])


def _window_of(windows: Windows, best: Answer | None) -> int:
    """The first window that holds the answer."""
    if best is not None:
        offsets = windows.offsets[0]
        for number in range(len(windows)):
            first = int(windows.first_W[number])
            end = first + int(windows.ids.lengths[number] - windows.asked_W[number]) - 1
            if end > first and offsets[first, 0] <= best.start and best.end <= offsets[end - 1, 1]:
                return number
    return 0


def _labelled(m: Map, by_length: dict[int, list[str]]) -> Map:
    queries, keys = by_length.get(m.queries, ["question"] if m.queries == 1 else None), by_length.get(m.keys)
    return m.label(queries, keys)


def _probabilities(reading: Reading, possible_L: Tensor, passage: list[str], like: Map) -> Map:
    """A row per step for the first token of the answer, then one per step for the last; with several steps their means, too."""
    rows: list[Tensor] = []
    labels: list[str] = []
    for name, log_p_TBL in (("start", reading.start_BL), ("end", reading.end_BL)):
        p_TP = log_p_TBL[:, 0, possible_L].exp()
        if len(p_TP) > 1:
            rows += [*p_TP, p_TP.mean(0)]
            labels += [*(f"{name} {step}" for step in range(1, len(p_TP) + 1)), f"{name}, mean"]
        else:
            rows += [p_TP[0]]
            labels += [name]
    weights_BHLM = torch.stack(rows)[None, None].cpu()
    return replace(
        like, layer=PROBABILITIES, mechanism="probability of the first and the last token", call=0, heads=(0,), rows=tuple(range(len(rows))),
        columns=tuple(range(len(passage))), queries=len(rows), weights_BHLM=weights_BHLM, normalised=True, pattern="full", stream=None,
        query_labels=(tuple(labels),), key_labels=(tuple(passage),), inputs=None, deferred=False,
    )  # fmt: skip
