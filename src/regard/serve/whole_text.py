"""A language model that reads its whole text at every step, so that the tokens of a `decode.Engine` come with attention weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from ..attention import State
from ..errors import StateNotSupported
from ..look import capture
from ..look.interventions import Ablation, ablate
from ..models import LanguageModel, body_of, eval_mode


class TextState(State):
    """The tokens that every row has read, and nothing computed from them.

    Args:
        batch: number of rows.
    """

    def __init__(self, batch: int):
        super().__init__(batch)
        self.ids_BL = torch.empty(batch, 0, dtype=torch.long)

    def append(self, ids_BL: Tensor) -> Tensor:
        """The whole text, these tokens included."""
        self.ids_BL = torch.cat([self.ids_BL.to(ids_BL.device), ids_BL], 1)
        self.length = self.ids_BL.shape[1]
        return self.ids_BL

    def reorder(self, rows: Tensor) -> Self:
        self.ids_BL = self.ids_BL[rows]
        return super().reorder(rows)

    def reset(self, rows: Tensor) -> Self:
        raise StateNotSupported("rows of a TextState are of one length; start a new state instead of resetting some")

    def join(self, other: Self) -> Self:
        raise StateNotSupported("rows of a TextState are of one length; run texts of other lengths in batches of their own")


class WholeTextModel(LanguageModel):
    """A language model whose decoding state is the text: each step is a forward pass over all of it, with heads ablated and weights captured.

    The model's own state would be faster, but has no weights of all mechanisms (compressed memories keep no keys one by one, LSH attention
    cannot stream), and a step has only its own values, so that a head cannot be made uniform. This way everything is as in a capture of the text.

    Args:
        model: language model to read with; it stays as it is.
        ablations: heads switched off in every pass.
        layer: index of the layer whose weights are kept, in order of calls.

    Shape: ids_BL → logits_BLN.
    """

    def __init__(self, model: LanguageModel, ablations: Sequence[Ablation] = (), layer: int = 0):
        super().__init__()
        self.config, self.model, self.ablations, self.layer = model.config, model, ablations, layer
        self.rows_HM: deque[Tensor] = deque()  # weights of the last query of each pass, the oldest first; the caller takes them out
        self.training = False  # and the model is in evaluation mode during each pass

    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        text_BL = state.append(ids_BL) if isinstance(state, TextState) else ids_BL
        with eval_mode(self.model), ablate(body_of(self.model), self.ablations), capture(self.model, rows=-1, layers=self.layer) as maps:
            x_BLD = self.model.features(text_BL, document_BL)
        self.rows_HM.append(maps.all[-1].weights_BHLM[0, :, 0])
        return x_BLD[:, -ids_BL.shape[1] :]

    def logits(self, x: Tensor) -> Tensor:
        return self.model.logits(x)

    def start(self, batch: int) -> State:
        return TextState(batch)
