"""Actions in a clip are seen only by a model that compares frames; factorised attention sees it, too, at a fraction of the cost.

Paper: Arnab et al. 2021, "ViViT: a video vision transformer", arXiv:2103.15691 (on Kinetics-400 its four models have 80.0, 78.8, 77.4 and
       76.3 % accuracy; there single frames give most classes away).
Run:   regard run vivit2021        Takes: some minutes on two CPU cores; three seeds of eight small models.

Generated clips: a digit moves over a torus of 16 × 16 pixels for 8 frames, in one of four directions at one of two speeds: 8 classes. It may
start anywhere, so a single frame says nothing. The ablations are the factorised encoder on the first frame alone, and on frames in random
order. "Frames apart": tubelets of one frame, so that motion is seen by the temporal encoder alone, which takes four times as many steps; its
ablation has the mean over frames instead.
The cost is that of one layer's forward pass over 16 frames of 32 × 32 pixels: 8 × 64 tokens.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from ..attention import Observation
from ..data.clips import GeneratedClip, moving_digits
from ..look.overlays import draw_panels
from ..look.pictures import png
from ..models import build
from ..models.vivit import Factorisation
from ..runs import Run
from ..tasks import Video, VideoOptions, attention_maps, evaluate, load_run
from ..train import read_metrics
from ._engine import Recipe, RecipeFacts, Results, above, at_least, at_most, below, validation_curves
from ._engine.base import variant_folder
from ._engine.variants import BaselineVariant, TaskVariant, milliseconds, short_training

FACTORISATIONS: tuple[Factorisation, ...] = ("joint", "encoder", "self_attention", "dot_product")
SETTINGS: dict[str, Any] = {"width": 48, "heads": 4, "depth": 2, "hidden": 96, "temporal_depth": 2, "patch_size": (4, 4)}
APART = VideoOptions(factorisation="encoder", tubelet=1)


def variant(options: VideoOptions, lr: float = 3e-3, steps: int = 200, **settings: Any) -> TaskVariant:
    train = short_training(steps, lr, evaluations=6)
    return TaskVariant(task=Video, options=options, train=train, settings=SETTINGS | settings, evaluate=accuracies)


def accuracies(run: Run[Any]) -> dict[str, float]:
    """Accuracy on clips of other digits, and on the validation part in the course of the training."""
    curve = {f"validation accuracy, step {event['step']}": event["accuracy"] for event in read_metrics(run.folder, "evaluation")}
    return {"accuracy": evaluate(run).metrics["accuracy"], **curve}


@dataclass(frozen=True)
class Cost:
    """Floating-point operations and CPU time of the forward pass of one clip."""

    factorisation: Factorisation

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        sizes = {"image_size": (32, 32), "patch_size": (4, 4), "channels": 1, "frames": 16, "tubelet": 2, "classes": 8}
        model = build("vivit", {**SETTINGS, **sizes, "width": 64, "depth": 2, "factorisation": self.factorisation}).eval()
        x_BTCHW = torch.randn(2, 16, 1, 32, 32)
        seen: list[Observation] = []
        with torch.no_grad(), FlopCounterMode(display=False) as counter, ExitStack() as watched:  # it does not see into fused attention
            for heads in model.attentions().values():
                watched.enter_context(heads.attention.observe(seen.append))
            model(x_BTCHW)
        attention = sum(4 * one.q_BLHK.numel() * one.k_BMHK.shape[1] for one in seen)  # q·k and the average of v
        operations = (counter.get_total_flops() + attention) / len(x_BTCHW)
        return {"megaflops": operations / 1e6, "milliseconds": milliseconds(lambda: model(x_BTCHW), 9) / len(x_BTCHW)}


VARIANTS: dict[str, Any] = {
    **{name: variant(VideoOptions(factorisation=name)) for name in FACTORISATIONS},
    "first frame": variant(VideoOptions(factorisation="encoder", frames=1, tubelet=1)),
    "frames in random order": variant(VideoOptions(factorisation="encoder", shuffle_frames=True)),
    "frames apart": variant(APART, lr=3e-2, steps=800),
    "frames apart, mean": variant(APART, lr=3e-2, steps=800, temporal_depth=0),
    **{f"cost, {name}": Cost(name) for name in FACTORISATIONS},
    "nearest neighbour": BaselineVariant(task=Video, options=VideoOptions(factorisation="joint"), name="nearest neighbour"),
}


def draw_attention(results: Results, out: Path) -> Path:
    """Attention per frame of a clip, in space and in time, in each layer of factorised self-attention."""
    run = load_run(variant_folder(out, "self_attention", results.seeds[0]))
    clip = out / "clip.npy"
    moving = moving_digits().test[3]
    assert isinstance(moving, GeneratedClip)
    np.save(clip, moving.pixels)
    text, maps = attention_maps(run, str(clip), "*")
    m = maps.view()
    names, _ = m.labels()
    grid = m.layout
    assert maps.image is not None
    panels = [("frames", None), *((name, grid.side_by_side(row)) for name, row in zip(names, m.weights_BHLM[0, 0], strict=True))]  # type: ignore[union-attr]
    path = out / "attention.png"
    path.write_bytes(png(draw_panels(maps.image, panels, columns=1, title=text.splitlines()[0].replace("\t", " "))))
    return path


recipe = Recipe(
    facts=RecipeFacts("vivit2021", 2021, "ViViT: a video vision transformer", "arXiv:2103.15691", "some minutes"),
    question="Which factorisations of attention see what happens in a clip, and what do they cost?",
    variants=VARIANTS,
    claims=(
        at_least("all four factorisations: at least 85 % right", 0.85, *FACTORISATIONS),
        above("joint attention is better than the nearest neighbour of the clip", "joint", "nearest neighbour", kind="level"),
        at_most("the first frame alone: at most 17.5 % right, where chance is 12.5 %", 0.175, "first frame", kind="control"),
        at_most(
            "frames apart, their mean instead of a temporal encoder: at most 17.5 % right", 0.175, "frames apart, mean", kind="control"
        ),
        above(
            "frames apart: a temporal encoder is at least 15 points above the mean over frames", "frames apart", "frames apart, mean", 0.15
        ),
        below("frames in random order: at least 30 points below the same model on clips", "frames in random order", "encoder", 0.3),
        *(
            below(
                f"{name}: fewer operations than joint attention",
                (f"cost, {name}", "megaflops"),
                ("cost, joint", "megaflops"),
                kind="control",
            )
            for name in ("encoder", "self_attention", "dot_product")
        ),
        *(
            below(
                f"{name}: less CPU time than joint attention",
                (f"cost, {name}", "milliseconds"),
                ("cost, joint", "milliseconds"),
                kind="control",
            )
            for name in ("encoder", "self_attention", "dot_product")
        ),
    ),
    pictures=(validation_curves("accuracy"), draw_attention),
)
