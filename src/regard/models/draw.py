r"""DRAW: a variational autoencoder that draws an image step by step on a canvas, reading and writing through a movable window.

$$\hat x_t = x - \sigma(c_{t-1}), \quad r_t = \mathrm{read}(x, \hat x_t, h^{dec}_{t-1}), \quad h^{enc}_t = \mathrm{LSTM}(r_t, h^{dec}_{t-1}), \quad
  z_t \sim \mathcal N(\mu(h^{enc}_t), \sigma(h^{enc}_t)^2)$$
$$h^{dec}_t = \mathrm{LSTM}(z_t), \quad c_t = c_{t-1} + \mathrm{write}(h^{dec}_t), \qquad
  -\log p(x) \le -\log p(x \mid \sigma(c_T)) + \sum_t \mathrm{KL}_t$$

The encoder reads, steered by the decoder's state; the decoder writes. To generate, z is drawn from N(0, 1) and only the decoder runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from ..kernels import normal
from . import filter_bank as bank
from .filter_bank import Window
from .model import Model, ModelConfig, ModelFacts, Size

LOG_STD = 8.0  # bound of log σ of z


@dataclass(frozen=True, kw_only=True)
class DrawConfig(ModelConfig):
    image_size: tuple[Size, Size] = (24, 24)  # rows and columns of pixels
    channels: Literal[1, 3] = 1  # grey, or red, green and blue
    glimpses: Size = 8  # steps of reading and writing; the paper has 64 for MNIST
    width: Size = 128  # units of each of the two LSTMs; the paper has 256
    latent: Size = 16  # numbers of z per step; the paper has 100
    read_size: Size = 5  # N of the grid that reads
    write_size: Size = 5  # N of the grid that writes
    attention: Literal["filter_bank", "none"] = "filter_bank"  # none: read and write the whole image at each step


class Drawing(NamedTuple):
    """Record of how an image was drawn; T is the number of steps."""

    canvas_BTCHW: Tensor  # logits after each step
    kl_BT: Tensor  # nats; none where z was drawn from the prior
    read_BT5: Tensor  # `Window.stack` of each step; (B, T, 0) without attention
    write_BT5: Tensor  # the writing windows, as `read_BT5`


class AttentiveRead(nn.Module):
    """N × N glimpses of the image and of what the canvas lacks, through one window."""

    def __init__(self, width: int, size: int, image_size: tuple[int, int], channels: int):
        super().__init__()
        self.size, self.image_size, self.outputs = size, image_size, 2 * channels * size * size
        self.window = bank.window_layer(width, size, image_size)

    def forward(self, both_BCHW: Tensor, h_BW: Tensor) -> tuple[Tensor, Tensor]:
        window = Window.of(self.window(h_BW), self.size, self.image_size)
        return bank.read(both_BCHW, window, self.size).flatten(1), window.stack()


class WholeRead(nn.Module):
    """All pixels: the ablation."""

    def __init__(self, image_size: tuple[int, int], channels: int):
        super().__init__()
        self.outputs = 2 * channels * image_size[0] * image_size[1]

    def forward(self, both_BCHW: Tensor, h_BW: Tensor) -> tuple[Tensor, Tensor]:
        return both_BCHW.flatten(1), h_BW[:, :0]


class AttentiveWrite(nn.Module):
    """An N × N patch, placed through a window of its own."""

    def __init__(self, width: int, size: int, image_size: tuple[int, int], channels: int):
        super().__init__()
        self.size, self.image_size, self.channels = size, image_size, channels
        self.window, self.patch = bank.window_layer(width, size, image_size), nn.Linear(width, channels * size * size)

    def forward(self, h_BW: Tensor) -> tuple[Tensor, Tensor]:
        window = Window.of(self.window(h_BW), self.size, self.image_size)
        patch_BCNN = self.patch(h_BW).unflatten(1, (self.channels, self.size, self.size))
        return bank.write(patch_BCNN, window, self.image_size), window.stack()


class WholeWrite(nn.Module):
    """All pixels: the ablation."""

    def __init__(self, width: int, image_size: tuple[int, int], channels: int):
        super().__init__()
        self.shape = (channels, *image_size)
        self.patch = nn.Linear(width, channels * image_size[0] * image_size[1])

    def forward(self, h_BW: Tensor) -> tuple[Tensor, Tensor]:
        return self.patch(h_BW).unflatten(1, self.shape), h_BW[:, :0]


class Draw(Model):
    """Two LSTMs, a latent vector per step, and Gaussian filter banks that read and write.

    Cost:    time O(T·(N·A·(A + N) + width²)) for T steps, grids of N × N filters and images of A × A pixels; without attention A²·width.
    Use it:  to see attention draw; for small images and a bound on their likelihood.
    Avoid it: for images that are good by today's measure.
    Limits:  a bound, not the likelihood itself; pixels are Bernoulli, so nats of grey images compare with nothing.
    Shape:   x_BCHW → `Drawing`, canvas_BTCHW.
    Paper:   Gregor et al. 2015, "DRAW: a recurrent neural network for image generation", arXiv:1502.04623.
    We differ: windows start wide, with overlapping Gaussians (see `filter_bank.window_layer`); sizes are for minutes on a CPU.
    """

    facts = ModelFacts(name="draw", year=2015, title="DRAW: a recurrent neural network for image generation", paper="arXiv:1502.04623")
    Config = DrawConfig
    config: DrawConfig
    length_setting = "image_size"

    def _build(self) -> None:
        c = self.config
        if c.attention == "none":
            self.read: nn.Module = WholeRead(c.image_size, c.channels)
            self.write: nn.Module = WholeWrite(c.width, c.image_size, c.channels)
        else:
            self.read = AttentiveRead(c.width, c.read_size, c.image_size, c.channels)
            self.write = AttentiveWrite(c.width, c.write_size, c.image_size, c.channels)
        self.encoder = nn.LSTMCell(self.read.outputs + c.width, c.width)
        self.posterior = nn.Linear(c.width, 2 * c.latent)
        self.decoder = nn.LSTMCell(c.latent, c.width)
        self.blank_CHW = nn.Parameter(torch.zeros(c.channels, *c.image_size))  # c₀

    @property
    def max_length(self) -> int:
        return self.config.image_size[0] * self.config.image_size[1]

    def forward(self, x_BCHW: Tensor) -> Drawing:
        """Draw images again, given as numbers from 0 to 1; z is sampled from the posterior."""
        if x_BCHW.dim() != 4 or x_BCHW.shape[1:] != self.blank_CHW.shape:
            raise ShapeError(f"Draw takes images (batch, {', '.join(map(str, self.blank_CHW.shape))}), got {tuple(x_BCHW.shape)}")
        canvas_BCHW, encoder, decoder = *self._start(len(x_BCHW)), self._hidden(len(x_BCHW))
        steps = []
        for _ in range(self.config.glimpses):
            error_BCHW = x_BCHW - canvas_BCHW.sigmoid()
            glimpse_BG, read_B5 = self.read(torch.cat([x_BCHW, error_BCHW], 1), decoder[0])
            encoder = self.encoder(torch.cat([glimpse_BG, decoder[0]], 1), encoder)
            mean_BZ, log_std_BZ = self.posterior(encoder[0]).chunk(2, -1)
            log_std_BZ = log_std_BZ.clamp(-LOG_STD, LOG_STD)
            z_BZ = mean_BZ + log_std_BZ.exp() * torch.randn_like(mean_BZ)
            decoder = self.decoder(z_BZ, decoder)
            stroke_BCHW, write_B5 = self.write(decoder[0])
            canvas_BCHW = canvas_BCHW + stroke_BCHW
            steps.append((canvas_BCHW, gaussian_kl(mean_BZ, log_std_BZ), read_B5, write_B5))
        return Drawing(*(torch.stack(part, 1) for part in zip(*steps, strict=True)))

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Drawing:
        """Draw new images: z from N(0, 1) at each step."""
        canvas_BCHW, decoder = self._start(count)
        steps = []
        for _ in range(self.config.glimpses):
            z_BZ = normal((count, self.config.latent), canvas_BCHW, generator)
            decoder = self.decoder(z_BZ, decoder)
            stroke_BCHW, write_B5 = self.write(decoder[0])
            canvas_BCHW = canvas_BCHW + stroke_BCHW
            steps.append((canvas_BCHW, canvas_BCHW.new_zeros(count), write_B5[:, :0], write_B5))
        return Drawing(*(torch.stack(part, 1) for part in zip(*steps, strict=True)))

    def _start(self, batch: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.blank_CHW.expand(batch, *self.blank_CHW.shape), self._hidden(batch)

    def _hidden(self, batch: int) -> tuple[Tensor, Tensor]:
        zero_BW = self.blank_CHW.new_zeros(batch, self.config.width)
        return zero_BW, zero_BW


def gaussian_kl(mean_BZ: Tensor, log_std_BZ: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(0, 1)) = ½ Σ (μ² + σ² − log σ² − 1), in nats."""
    return 0.5 * (mean_BZ.square() + (2 * log_std_BZ).exp() - 2 * log_std_BZ - 1).sum(-1)


def bernoulli_nll(x_BCHW: Tensor, canvas_BCHW: Tensor) -> Tensor:
    """−log p(x | σ(c)) of each image, in nats; x from 0 to 1 counts as a probability."""
    nll_BCHW = nn.functional.binary_cross_entropy_with_logits(canvas_BCHW, x_BCHW, reduction="none")
    return nll_BCHW.flatten(1).sum(1)
