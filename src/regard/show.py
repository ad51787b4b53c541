"""A mechanism or a pattern as something to look at: text for the terminal, or a PNG file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .attention import Attention
from .errors import NotSupported, RegardError, ShapeError
from .patterns import Pattern, causal, full

SHADES = " ·░▒▓█"
LONGEST = 200  # beyond that neither a terminal nor a glance holds the picture


def example(mechanism: type[Attention], length: int = 12, seed: int = 0) -> tuple[Pattern, Tensor]:
    """The weights_LM of one head on a small sequence in which tokens come back, and the pattern they were taken under.

    Keys equal queries, and the sequence repeats after half its length, so a mechanism that compares content shows two lines.
    """
    if not 2 <= length <= LONGEST:
        raise ShapeError(f"length={length}: expected 2 to {LONGEST}")
    width = 8
    with torch.random.fork_rng(devices=[]):  # the parameters of a mechanism are drawn from the global generator
        torch.manual_seed(seed)
        attention = mechanism.sized(heads=1, width=width, length=length).eval()
        half = torch.randn(1, (length + 1) // 2, 1, width)
        x_BLHK = torch.cat([half, half], 1)[:, :length] * 1.5
        reasons = []
        for pattern in (causal, full):
            try:
                with torch.no_grad():
                    return pattern, attention.weights(x_BLHK, x_BLHK, pattern)[0, 0]
            except (RegardError, NotImplementedError) as error:
                reasons.append(str(error) or "it gives no weights")
    raise NotSupported(f"{mechanism.__name__} has no example to draw: {reasons[-1]}")


def shaded(weights_LM: Tensor) -> str:
    """The weights in characters, two a cell: a line a query, darker where it looks more; the scale is the largest weight."""
    top = weights_LM.abs().max().clamp(min=1e-12)
    level_LM = (weights_LM.abs() / top * (len(SHADES) - 1)).round().long()
    return "\n".join("".join(SHADES[level] * 2 for level in row).rstrip() for row in level_LM.tolist())


def save_png(weights_LM: Tensor, path: str | Path, title: str = "", labels: list[str] | None = None) -> Path:
    """The weights as a PNG file: a row a query, a column a key."""
    from matplotlib.figure import Figure  # only when a picture is asked for

    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(weights_LM.detach().float().cpu().numpy(), cmap="Blues", vmin=0, interpolation="nearest")
    axis.set(title=title, xlabel="key", ylabel="query")
    if labels is not None:
        axis.set_xticks(range(len(labels)), labels, fontsize=7)
        axis.set_yticks(range(len(labels)), labels, fontsize=7)
    figure.colorbar(image, ax=axis, shrink=0.8)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return Path(path)
