"""Training throughput of ViT, images per second, against transformers: forward and backward pass on the same config, in one run.

Run: python -m benchmarks.images [--quick]        Takes: two minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models import build

from ._common import machine, progress, write

# name, image size, patch size, channels, width, heads, depth, batch size
CONFIGS = [
    ("28 × 28 grey, patches of 4", 28, 4, 1, 96, 3, 6, 64),
    ("28 × 28 grey, patches of 7", 28, 7, 1, 128, 4, 6, 64),
    ("32 × 32, patches of 4, ViT-Ti", 32, 4, 3, 192, 3, 12, 32),
    ("224 × 224, patches of 16, ViT-Ti", 224, 16, 3, 192, 3, 12, 4),
]
CLASSES = 10


def ours(size: int, patch: int, channels: int, width: int, heads: int, depth: int) -> nn.Module:
    return build(
        "vit",
        image_size=size,
        patch_size=patch,
        channels=channels,
        classes=CLASSES,
        width=width,
        heads=heads,
        depth=depth,
        hidden=4 * width,
    ).train()


def theirs(size: int, patch: int, channels: int, width: int, heads: int, depth: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=size, patch_size=patch, num_channels=channels, hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads,
        intermediate_size=4 * width, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return ViTForImageClassification(config).train()


def step_of(model: nn.Module, x_BCHW: Tensor, label_B: Tensor) -> Callable[[], None]:
    def step() -> None:
        out = model(x_BCHW)
        F.cross_entropy(getattr(out, "logits", out), label_B).backward()
        model.zero_grad(set_to_none=True)

    return step


def rates(steps: dict[str, Callable[[], None]], images: int, rounds: int) -> dict[str, list[float]]:
    """Images per second, measured in turns, so that both meet the same load."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            found[name].append(images / (time.perf_counter() - start))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds; prints only")
    quick = parser.parse_args().quick
    rows = []
    for name, *sizes, batch in CONFIGS:
        torch.manual_seed(0)
        x_BCHW, label_B = torch.randn(batch, sizes[2], sizes[0], sizes[0]), torch.randint(CLASSES, (batch,))
        steps = {kind.__name__: step_of(kind(*sizes), x_BCHW, label_B) for kind in (ours, theirs)}
        found = rates(steps, batch, 3 if quick else 25)
        mine, other = (statistics.median(found[kind]) for kind in ("ours", "theirs"))
        ratio = statistics.median(a / b for a, b in zip(found["ours"], found["theirs"], strict=True))
        progress(f"{name}: {mine:.0f} against {other:.0f} images per second")
        rows.append(f"| {name}, width {sizes[3]}, {sizes[5]} layers, batch {batch} | {other:,.0f} | {mine:,.0f} | **{ratio:.2f}×** |")
    head = [
        "## Training a vision transformer",
        "",
        f"Images per second, forward and backward pass, float32, no dropout; medians of 25 turns. {machine()}.",
        "",
    ]
    write("images", [*head, "| config | transformers ViT | regard | faster |", "|---|---|---|---|", *rows], quick)


if __name__ == "__main__":
    main()
