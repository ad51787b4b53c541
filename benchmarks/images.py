"""Training throughput of ViT, images per second, against transformers: forward and backward pass on the same config, in one run.

Run: python -m benchmarks.images [--quick]        Takes: three minutes.

Each side trains in a process of its own, in turns: regard with freed memory kept for reuse, as `regard train` does, and transformers both as it is
and with memory kept, too; the last ratio is that of the models alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import nn

from regard.machine import keep_memory
from regard.models import build

from ._common import child, machine, progress, write

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


# In the children: one step at a time.
_step: Callable[[], None]


def prepare(side: str, memory_kept: bool, config: int) -> None:
    """Build the model and its batch, and take two steps."""
    global _step
    if memory_kept:
        keep_memory()
    _, *sizes, batch = CONFIGS[config]
    torch.manual_seed(0)
    x_BCHW, label_B = torch.randn(batch, sizes[2], sizes[0], sizes[0]), torch.randint(CLASSES, (batch,))
    model = {"regard": ours, "transformers": theirs}[side](*sizes)

    def step() -> None:
        out = model(x_BCHW)
        F.cross_entropy(getattr(out, "logits", out), label_B).backward()
        model.zero_grad(set_to_none=True)

    _step = step
    seconds(2)


def seconds(steps: int) -> float:
    """Seconds per step."""
    start = time.perf_counter()
    for _ in range(steps):
        _step()
    return (time.perf_counter() - start) / steps


SIDES = {"transformers": ("transformers", False), "transformers, memory kept": ("transformers", True), "regard": ("regard", True)}


def rates(config: int, rounds: int) -> dict[str, list[float]]:
    """Images per second of each side, measured in turns, so that all meet the same load."""
    batch = CONFIGS[config][-1]
    found: dict[str, list[float]] = {name: [] for name in SIDES}
    with ExitStack() as stack:
        children = {name: stack.enter_context(child()) for name in SIDES}
        for name, (side, memory_kept) in SIDES.items():
            children[name].call("benchmarks.images:prepare", 120, side=side, memory_kept=memory_kept, config=config)
        for _ in range(rounds):
            for name, process in children.items():
                found[name].append(batch / process.call("benchmarks.images:seconds", 120, steps=3))
    return found


def ratio(one: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds; prints only")
    quick = parser.parse_args().quick
    rounds, rows = 3 if quick else 12, []
    for n, (name, *sizes, batch) in enumerate(CONFIGS):
        found = rates(n, rounds)
        plain, kept, mine = (found[side] for side in SIDES)
        progress(f"{name}: {statistics.median(mine):.0f} against {statistics.median(plain):.0f} images per second")
        cells = [
            f"{name}, width {sizes[3]}, {sizes[5]} layers, batch {batch}",
            *(f"{statistics.median(found[side]):,.0f}" for side in SIDES),
        ]
        rows.append(f"| {' | '.join(cells)} | **{ratio(mine, plain):.2f}×** | {ratio(mine, kept):.2f}× |")
    head = [
        "## Training a vision transformer",
        "",
        f"Images per second, forward and backward pass, float32, no dropout; medians of {rounds} turns of three steps. {machine()}.",
        "`regard train` keeps freed memory for reuse (`machine.keep_memory`); beside transformers as it is stands transformers with memory kept, too.",
        "",
        f"| config | {' | '.join(SIDES)} | faster | memory kept by both |",
        "|---|---|---|---|---|---|",
    ]
    write("images", [*head, *rows], quick)


if __name__ == "__main__":
    main()
