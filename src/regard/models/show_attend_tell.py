r"""An LSTM writes a caption word by word; before each word it attends to the cells of a convolutional feature map.

$$\hat z_t = β_t \sum_i α_{ti}\, a_i \qquad α_t = \mathrm{softmax}_i\big(u^\top\tanh(W_a s_t + U_a a_i)\big) \qquad β_t = σ(w_β^\top s_t + b_β)$$
$$s_t = [h_{t-1}; E y_{t-1}] \qquad h_t, c_t = \mathrm{LSTM}([E y_{t-1}; \hat z_t],\, h_{t-1}, c_{t-1}) \qquad
  p(y_t) = \mathrm{softmax}\big(L_o \tanh(E y_{t-1} + L_h h_t + L_z \hat z_t)\big)$$
$$h_0 = f_h(\bar a) \qquad c_0 = f_c(\bar a) \qquad \bar a = \text{mean of the } a_i$$

Hard attention reads one sampled cell, $\hat z_t = β_t\, a_{s_t}$ with $s_t \sim \mathrm{Categorical}(α_t)$; the scores then learn by REINFORCE, see
`tasks.captions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..attention import Attention, HardAttention, SoftmaxAttention, State, find_mechanism
from ..errors import BadConfig, ShapeError
from ..layers import Dropout
from .model import Model, ModelConfig, ModelFacts, Probability, Size, Step
from .recurrent import Hidden, RecurrentStack
from .translator import Decoding

MEAN = "mean"
LONGEST = 4096  # tokens: nothing else in a checkpoint bounds how long a caption may become


@dataclass(frozen=True, kw_only=True)
class ShowAttendTellConfig(ModelConfig):
    vocab_size: Size  # number of tokens of the captions
    image_size: Size = 32  # pixels per side
    channels: Size = 3  # channels of the images
    stride: Size = 4  # pixels per cell of the feature map, a power of two
    features: Size = 96  # features of each annotation vector
    embedding: Size = 96  # width of the token embeddings
    width: Size = 128  # units of the LSTM
    alignment: Size = 64  # size of queries and keys
    attention: str = "additive"  # mechanism that attends to the cells; hard samples one; mean: no attention, the mean of all cells
    max_length: Size = 64  # tokens of the longest caption
    dropout: Probability = 0.1  # dropout rate

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride & (self.stride - 1) or self.image_size % self.stride:
            raise ShapeError(f"image_size={self.image_size} and stride={self.stride}; expected a power of two that divides the size")
        if self.max_length > LONGEST:
            raise BadConfig(f"ShowAttendTell: max_length={self.max_length}; expected at most {LONGEST:,} tokens per caption")
        if self.attention != MEAN:
            find_mechanism(self.attention)


class Reading(NamedTuple):
    """Captions under teacher forcing, for a loss: features and attention weights, and what REINFORCE needs of sampled cells."""

    x_BLD: Tensor
    weights_BLM: Tensor
    log_prob_BL: Tensor | None = None  # log-probability of the sampled cells; 0 for rows that read the average
    entropy_BL: Tensor | None = None


class ShowAttendTell(Model):
    """A small convolutional encoder, and an LSTM decoder with attention over its feature map.

    Cost:    time O(L·M·A + L·W²), sequential over the caption; memory for training O(L·M·A).
    Use it:  for short captions of small images, and to see which region each word comes from.
    Avoid it: for photographs without a pretrained encoder: this one is trained from scratch with the captions.
    Shape:   image_BCHW, target_BL → logits_BLN.
    Paper:   Xu et al. 2015, "Show, attend and tell", arXiv:1502.03044, sections 3 and 4.
    We differ: the encoder is four convolutions, not a frozen VGG; a learned position embedding is added to each annotation vector, since
             captions say where things are. The query knows the last word, in the paper only the state before it: after "a red" it has to find
             what is red. Hard attention scores by the scaled dot product; at test time it takes the most likely cell.
    """

    facts = ModelFacts(
        name="show_attend_tell",
        year=2015,
        title="Show, attend and tell: neural image caption generation with visual attention",
        paper="arXiv:1502.03044",
    )
    Config = ShowAttendTellConfig
    config: ShowAttendTellConfig

    def _build(self) -> None:
        c = self.config
        self.grid = c.image_size // c.stride
        self.encoder = ConvEncoder(c.channels, c.features, c.stride)
        self.position = nn.Parameter(torch.randn(self.grid**2, c.features) * 0.1)
        self.first = nn.ModuleDict({name: nn.Linear(c.features, c.width) for name in ("h", "c")})  # f_h, f_c
        self.token, self.dropout = nn.Embedding(c.vocab_size, c.embedding), Dropout(c.dropout)
        self.key = nn.Linear(c.features, c.alignment, bias=False)  # U_a
        self.query_and_gate = nn.Linear(c.width + c.embedding, c.alignment + 1)  # W_a over w_β: one matmul per step
        self.lstm = RecurrentStack("lstm", c.embedding + c.features, c.width)
        self.from_state = nn.Linear(c.width, c.embedding)  # L_h
        self.from_context = nn.Linear(c.features, c.embedding)  # L_z
        self.output = nn.Linear(c.embedding, c.vocab_size)  # L_o
        self.attention = None if c.attention == MEAN else self._mechanism()
        if isinstance(self.attention, HardAttention):
            self.attention.sample = False
            self.register_buffer("baseline_L", torch.zeros(c.max_length))  # moving averages of the reward, by position

    def _mechanism(self) -> Attention:
        c = self.config
        return find_mechanism(c.attention).sized(heads=1, head_dim=c.alignment, length=self.grid**2)

    @property
    def hard(self) -> bool:
        """True if cells are sampled in training."""
        return isinstance(self.attention, HardAttention)

    def baselines(self) -> Tensor:
        """Moving averages of the reward by position, of hard attention."""
        assert isinstance(self.baseline_L, Tensor)
        return self.baseline_L

    # -- training ------------------------------------------------------------------------------------------------------

    def features(self, image_BCHW: Tensor, target_BL: Tensor) -> Tensor:
        """x_BLD under teacher forcing. `target_BL` starts with BOS; position t predicts token t + 1."""
        return self._all_steps(image_BCHW, target_BL)[0]

    def forward(self, image_BCHW: Tensor, target_BL: Tensor) -> Tensor:
        """logits_BLN under teacher forcing."""
        return self.logits(self.features(image_BCHW, target_BL))

    def read(self, image_BCHW: Tensor, target_BL: Tensor, soft_share: float = 0.5) -> Reading:
        """Features and weights; of hard attention in training the samples too: this share of the images reads the average of all cells.

        Args:
            image_BCHW: images.
            target_BL: token ids of the captions, which start with BOS.
            soft_share: share of the images that read the average of all cells, in training with hard attention.
        """
        if not (self.hard and self.training):
            x_BLD, weights = self._all_steps(image_BCHW, target_BL, want_weights=True)
            return Reading(x_BLD, torch.stack(weights, 1))
        sampled = _SampledRead(torch.rand(len(image_BCHW), device=image_BCHW.device) < soft_share)
        x_BLD, _ = self._all_steps(image_BCHW, target_BL, sampled)
        return Reading(x_BLD, *(torch.stack(each, 1) for each in zip(*sampled.steps, strict=True)))

    def _all_steps(
        self, image_BCHW: Tensor, target_BL: Tensor, sampled: _SampledRead | None = None, want_weights: bool = False
    ) -> tuple[Tensor, list[Any]]:
        """x_BLD, and the attention weights of each step if wanted."""
        fixed, hidden = self._encode(image_BCHW)
        e_BLE, read, weights = self.dropout(self.token(target_BL)), list[tuple[Tensor, Tensor]](), list[Tensor | None]()
        for e_BE in e_BLE.unbind(1):
            h_BW, z_BD, weights_BM, hidden = self._advance(e_BE, hidden, fixed, sampled, want_weights)
            read.append((h_BW, z_BD))
            weights.append(weights_BM)
        return self._before_output(e_BLE, *(torch.stack(each, 1) for each in zip(*read, strict=True))), weights

    # -- decoding ------------------------------------------------------------------------------------------------------

    def start(self, image_BCHW: Tensor) -> State:
        """Encode the images, and return a decoding state that has read no word yet."""
        fixed, (h_B1W, c_B1W) = self._encode(image_BCHW)
        return Decoding({"h": h_B1W, "c": c_B1W}, fixed)

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        """One token per row: the logits of the next, and the attention weights over the cells; the state advances.

        Args:
            token_B: last token of each row.
            state: decoding state, which advances.
            want_weights: return attention weights over the cells, too.
        """
        assert isinstance(state, Decoding)
        e_BE, hidden = self.dropout(self.token(token_B)), (state.now["h"], state.now["c"])
        h_BW, z_BD, weights_BM, (h_B1W, c_B1W) = self._advance(e_BE, hidden, state.fixed, None, want_weights)
        state.move(h=h_B1W, c=c_B1W)
        return Step(self.logits(self._before_output(e_BE, h_BW, z_BD)), weights_BM)

    # -- both ----------------------------------------------------------------------------------------------------------

    def _encode(self, image_BCHW: Tensor) -> tuple[dict[str, Tensor], Hidden]:
        """Annotation vectors with their keys, and the decoder's initial state."""
        c = self.config
        expected = (c.channels, c.image_size, c.image_size)
        if image_BCHW.dim() != 4 or image_BCHW.shape[1:] != expected:
            raise ShapeError(f"ShowAttendTell takes images (batch, {', '.join(map(str, expected))}), got {tuple(image_BCHW.shape)}")
        a_BMD = self.encoder(image_BCHW) + self.position
        mean_BD = a_BMD.mean(1)
        fixed = {"annotations": a_BMD, "keys": self.key(a_BMD)}
        return fixed, tuple(torch.tanh(self.first[name](mean_BD)).unsqueeze(1) for name in ("h", "c"))

    def _advance(
        self, e_BE: Tensor, hidden: Hidden, fixed: dict[str, Tensor], sampled: _SampledRead | None, want_weights: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Hidden]:
        """h_t and ẑ_t, the attention weights if wanted, and the next state of the LSTM."""
        a_BMD, k_BMA = fixed["annotations"], fixed["keys"]
        query_BA, gate_B1 = self.query_and_gate(torch.cat([hidden[0][:, 0], e_BE], -1)).split((self.config.alignment, 1), -1)
        q, k, v = query_BA[:, None, None], k_BMA.unsqueeze(2), a_BMD.unsqueeze(2)
        weights_BM = None
        if self.attention is None:
            context_BD = a_BMD.mean(1)
            weights_BM = a_BMD.new_full(a_BMD.shape[:2], 1 / a_BMD.shape[1]) if want_weights else None
        elif sampled is not None:
            context_BD = sampled(q, k, v)
        else:
            weights_BM = self.attention.weights(q, k)[:, 0, 0] if want_weights else None
            context_BD = self.attention(q, k, v)[:, 0, 0] if weights_BM is None else (weights_BM.unsqueeze(1) @ a_BMD)[:, 0]
        z_BD = torch.sigmoid(gate_B1) * context_BD
        h_BW, hidden = self.lstm.step(self.lstm.input_gates(torch.cat([e_BE, z_BD], -1)), hidden)
        return h_BW, z_BD, weights_BM, hidden

    def _before_output(self, e: Tensor, h: Tensor, z: Tensor) -> Tensor:
        """Features that predict the next word, at one step or at all."""
        return self.dropout(torch.tanh(e + self.from_state(self.dropout(h)) + self.from_context(z)))


class _SampledRead:
    """Hard attention in training: each image reads sampled cells, or the average of all cells (`soft_B`). It keeps what REINFORCE needs."""

    def __init__(self, soft_B: Tensor):
        self.soft_B, self.soft, self.hard = soft_B, SoftmaxAttention(), HardAttention()
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []  # weights_BM, log_prob_B, entropy_B

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The context, out_BD."""
        choice, weights_BM = self.hard.choose(q, k), self.soft.weights(q, k)[:, 0, 0]
        self.steps.append((weights_BM, choice.log_prob_BHL[:, 0, 0].masked_fill(self.soft_B, 0), choice.entropy_BHL[:, 0, 0]))
        average_BD, one_BD = (weights_BM.unsqueeze(1) @ v[:, :, 0])[:, 0], self.hard.read(v, choice)[:, 0, 0]
        return torch.where(self.soft_B[:, None], average_BD, one_BD)


class ConvEncoder(nn.Module):
    """A 4 × 4 convolution of stride 2 for each factor 2 of the stride, then one of 3 × 3, each with batch norm. x_BCHW to a_BMD, a vector per
    cell, which sees as many pixels on each side of the cell: with 3 × 3 and stride 2 it would see 1.5 pixels more to the left and above.

    Batch norm matters: most of a drawing is background, and with a norm per image, or none, 700 steps did not even learn colours. Batches must
    be drawn at random: see `CaptionBatches.shuffled`.
    """

    def __init__(self, channels: int, features: int, stride: int):
        super().__init__()
        layers: list[nn.Module] = []
        before, width = channels, max(32, features // 2)
        for _ in range(stride.bit_length() - 1):
            layers += [nn.Conv2d(before, width, 4, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            before = width
        layers += [nn.Conv2d(before, features, 3, padding=1), nn.BatchNorm2d(features), nn.ReLU(), nn.Conv2d(features, features, 1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        found_BDhw: Tensor = self.layers(x_BCHW)
        return found_BDhw.flatten(2).mT
