r"""Handwriting synthesis: a recurrent network writes pen strokes while a soft window slides over the text.

$$h^1_t = \mathrm{LSTM}(x_t, w_{t-1}), \quad w_t = \mathrm{window}(h^1_t, c), \quad h^n_t = \mathrm{LSTM}(x_t, h^{n-1}_t, w_t), \quad
  p(x_{t+1}) = \mathrm{mixture}\big(W [h^1_t; \ldots; h^N_t] + b\big)$$

x_t = (dx, dy, lifted) is a pen point, c the one-hot characters of the text. Without characters it is the paper's prediction network, which
writes on without knowing what.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import GaussianWindow, State
from ..errors import ShapeError
from .model import Count, Depth, Model, ModelConfig, ModelFacts, Size
from .pen_mixture import PER_COMPONENT, PenMixture
from .recurrent import GATES, Hidden, RecurrentStack


@dataclass(frozen=True, kw_only=True)
class HandwritingConfig(ModelConfig):
    vocab_size: Count = 0  # characters; 0: a prediction network, which knows no text
    width: Size = 160  # units of each LSTM layer; the paper has 400
    depth: Depth = 3  # LSTM layers
    window_components: Size = 10  # Gaussians of the window over the text
    components: Size = 20  # Gaussians of the next point
    max_length: Size = 1500  # longest sequence of points that it writes


@dataclass
class WritingState:
    """State of a line: the hidden state of each layer, the last window, and how far the window has come."""

    hidden: list[Hidden]
    w_BV: Tensor
    window: State | None


class Handwriting(Model):
    """LSTM layers with skip connections, a Gaussian window over the text, and a mixture density output.

    Cost:    time O(L·(M·K + width²)) for L points, M characters and K components of the window; the first layer runs step by step.
    Use it:  to write any text by hand, in the hand of the data or of a line given first; for pen strokes without a text, too.
    Avoid it: for texts whose strokes are not in their order, and for images: it needs the path of the pen.
    Limits:  characters of the training data only.
    Shape:   points_BL3, text_BM → `PenMixture` of B × L points.
    Paper:   Graves 2013, "Generating sequences with recurrent neural networks", arXiv:1308.0850, sections 4 and 5.
    We differ: ε = σ(ê) rather than 1 / (1 + exp ê); the LSTM has no peepholes; gradients are clipped by their norm (`--clip`) rather than
             per unit; the default width is 160, where the paper has 400.
    """

    facts = ModelFacts(name="handwriting", year=2013, title="Generating sequences with recurrent neural networks", paper="arXiv:1308.0850")
    Config = HandwritingConfig
    config: HandwritingConfig

    def _build(self) -> None:
        c = self.config
        V, W = c.vocab_size, c.width
        self.first = RecurrentStack("lstm", 3, W)
        self.feed = nn.Linear(V, GATES["lstm"] * W, bias=False) if V else None  # the first layer's weights for w_{t−1}
        self.window = GaussianWindow(head_dim=W, components=c.window_components) if V else None
        self.upper = nn.ModuleList(RecurrentStack("lstm", 3 + V + W, W) for _ in range(c.depth - 1))
        self.output = nn.Linear(c.depth * W, PER_COMPONENT * c.components + 1)

    def start(self, batch: int) -> WritingState:
        """State before the first point."""
        c, like = self.config, self.output.weight
        zero_B1W = like.new_zeros(batch, 1, c.width)
        hidden: list[Hidden] = [(zero_B1W, zero_B1W) for _ in range(c.depth)]
        return WritingState(hidden, like.new_zeros(batch, c.vocab_size), None if self.window is None else self.window.start_cross(batch))

    def forward(self, points_BL3: Tensor, text_BM: Tensor | None = None, state: WritingState | None = None) -> PenMixture:
        """The distribution of the point after each; `state` continues after earlier points, and advances.

        text_BM: characters from 1; 0 stands for none, as after the end of a text.

        Args:
            points_BL3: points (dx, dy, lifted).
            text_BM: characters of the texts; None for a prediction network.
            state: state after earlier points, which advances; None: start.
        """
        return PenMixture.of(self.output(self.features(points_BL3, text_BM, state)))

    def features(self, points_BL3: Tensor, text_BM: Tensor | None = None, state: WritingState | None = None) -> Tensor:
        """The outputs of all layers side by side, (B, L, depth · width).

        Args:
            points_BL3: points (dx, dy, lifted).
            text_BM: characters of the texts; None for a prediction network.
            state: state after earlier points, which advances; None: start.
        """
        self._check(points_BL3, text_BM)
        state = self.start(len(points_BL3)) if state is None else state
        if self.window is None:
            h_BLW, state.hidden[0] = self.first(points_BL3, state.hidden[0])
            outputs, beside = [h_BLW], [points_BL3]
        else:
            assert text_BM is not None
            h_BLW, w_BLV = self._slide(points_BL3, text_BM, state)
            outputs, beside = [h_BLW], [points_BL3, w_BLV]
        for n, layer in enumerate(self.upper, 1):
            h_BLW, state.hidden[n] = layer(torch.cat([*beside, outputs[-1]], -1), state.hidden[n])
            outputs.append(h_BLW)
        return torch.cat(outputs, -1)

    def _slide(self, points_BL3: Tensor, text_BM: Tensor, state: WritingState) -> tuple[Tensor, Tensor]:
        """The first layer and the window, step by step: each reads what the other made of the point before."""
        assert self.window is not None and self.feed is not None
        v_BM1V = F.one_hot(text_BM, self.config.vocab_size + 1)[..., 1:].to(points_BL3.dtype).unsqueeze(2)  # no character is zeros
        k_BM1W = v_BM1V.new_zeros(()).expand(*v_BM1V.shape[:3], self.config.width)  # a window does not read the keys
        (h_BW, c_BW), w_BV, outputs, windows = (x_B1W[:, 0] for x_B1W in state.hidden[0]), state.w_BV, [], []
        from_h_GW, bias_G = self.first.from_hidden()
        from_hw_GX = torch.cat([from_h_GW, self.feed.weight], 1)  # one matmul per step rather than two
        for gates_BG in (self.first.input_gates(points_BL3) + bias_G).unbind(1):
            h_BW, c_BW = self.first.update(gates_BG, F.linear(torch.cat([h_BW, w_BV], 1), from_hw_GX), (h_BW, c_BW))
            w_BV = self.window(h_BW[:, None, None], k_BM1W, v_BM1V, state=state.window)[:, 0, 0]
            outputs.append(h_BW)
            windows.append(w_BV)
        state.hidden[0], state.w_BV = (h_BW[:, None], c_BW[:, None]), w_BV
        return torch.stack(outputs, 1), torch.stack(windows, 1)

    def _check(self, points_BL3: Tensor, text_BM: Tensor | None) -> None:
        if points_BL3.dim() != 3 or points_BL3.shape[-1] != 3:
            raise ShapeError(
                f"Handwriting takes points (batch, length, 3), got {tuple(points_BL3.shape)}: dx, dy and whether the pen is lifted"
            )
        if self.window is not None and (text_BM is None or text_BM.dim() != 2 or len(text_BM) != len(points_BL3)):
            shape = None if text_BM is None else tuple(text_BM.shape)
            raise ShapeError(f"Handwriting takes characters (batch, length) with the points, got {shape} for {tuple(points_BL3.shape)}")
