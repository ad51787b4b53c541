"""A transformer over text and image codes draws what the text says; sparse layers do as well as full attention.

Paper: Ramesh et al. 2021, "Zero-shot text-to-image generation", arXiv:2102.12092, section 2 (there 250 million pairs and 12 billion parameters, here
       generated scenes).
Run:   regard run dalle2021        Takes: about 18 minutes on one CPU core; three seeds of three small models.

Scenes of one shape, 16 × 16 pixels, four colours and three shapes, 8 × 8 codes; texts such as "a small red circle" and "a red circle at the top left". Whether a drawing shows
the colour and the shape that were asked for is read from its pixels (`data.scenes.recognise`, which reads all real scenes right). In the
ablation texts are dealt out to the images at random. CLIP, trained on the same scenes, ranks eight drawings per text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import tasks
from .._extras import extra
from ..data.captions import Captioned
from ..data.images import Pixels
from ..data.scenes import COLOURS, SHAPES, recognise
from ..data.splits import Splits
from ..models import CLIP, DALLE
from ..runs import Run
from ..tasks import Clip, ClipOptions, Dalle, DalleOptions
from ..tasks.image_drawing import draw, ranks
from ..train import TrainOptions
from ._engine import Claim, Recipe, RecipeFacts, Results, above, at_least, at_most, measured, variant_folder
from ._engine.variants import short_training, train_run
from .clip2021 import SIZE as CLIP_SIZE

DATA = "scenes:count=2000,size=16,objects=1,colours=4,shapes=3"
TRAIN = TrainOptions(
    steps=1350, optimizer="muon", lr=0.02, schedule="wsd", warmup_steps=20, average=0, log_every=150, evaluate_every=450, save_every=1350
)
TRAIN_CLIP = short_training(600, 0.01, evaluations=1)  # after 100 steps, or 300 in one of three seeds, it takes small squares for circles
SIZE: dict[str, Any] = {"stride": 2, "codes": 64, "features": 32, "width": 64, "heads": 4, "depth": 4}
CLASSES = [f"{colour} {shape}" for colour in list(COLOURS)[:4] for shape in SHAPES[:3]]
REPEATS = 6  # prompts per class


class ShuffledDalle(Dalle):
    """Dalle, with the texts of the training images dealt out at random."""

    def read(self) -> Splits[list[Captioned]]:
        found = super().read()
        captions = [one.captions for one in found.train]
        random.Random(0).shuffle(captions)
        return replace(found, train=[one._replace(captions=other) for one, other in zip(found.train, captions, strict=True)])


@dataclass(frozen=True, kw_only=True)
class DalleVariant:
    """DALL·E trained from scratch; how many of its drawings show what was asked for."""

    task: type[Dalle] = Dalle
    train: TrainOptions = TRAIN
    settings: dict[str, Any] = field(default_factory=dict)
    ranked: bool = False

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        options = DalleOptions(data=DATA, image_size=16, max_length=10, vae_share=0.66, kl=0.02)
        run, training = train_run(self.task, options, self.train.replace(seed=seed), out, settings={**SIZE, **self.settings})
        names = CLASSES * REPEATS
        prompts = [f"a {'large' if n % 2 else 'small'} {name}" for n, name in enumerate(names)]
        test = Dalle(options).read().test  # right texts, also in the ablation
        task = Dalle(options, run.processor)
        bounds = task.metrics(*tasks.measure(task, run.model, test), test)
        found = {**bounds, **training, "reads back": reads_back(run, test)}
        found["agreement"] = agreement(draw(run.model, run.processor, prompts, seed=seed), names)
        if self.ranked:
            judge, _ = train_run(
                Clip, ClipOptions(data=DATA, image_size=16, max_length=10), TRAIN_CLIP.replace(seed=seed), out / "clip", settings=CLIP_SIZE
            )
            found["agreement, best of 8"] = agreement([best_of(run, judge, prompt, 8, seed)[0] for prompt in prompts], names)
        return found


def agreement(images: Sequence[Pixels], names: Sequence[str]) -> float:
    return sum(recognise(image) == name for image, name in zip(images, names, strict=True)) / len(names)


def reads_back(run: Run[DALLE], images: Sequence[Captioned]) -> float:
    """Share of real scenes that are still recognised after encoding and decoding: what a perfect transformer would reach."""
    x_BCHW = run.processor.encode_images([one.pixels for one in images])
    drawn = run.model.vae.draw(run.model.vae.encode(x_BCHW))
    return agreement([run.processor.image.decode(x_CHW) for x_CHW in drawn], [str(one.things[0]) for one in images])


def best_of(run: Run[DALLE], judge: Run[CLIP], prompt: str, n: int, seed: int) -> list[Pixels]:
    """Drawings of a text, best first."""
    images = draw(run.model, run.processor, [prompt] * n, seed=seed)
    scores = ranks(judge, prompt, images)
    return [images[at] for at in sorted(range(n), key=lambda at: -scores[at])]


@dataclass(frozen=True, kw_only=True)
class Drawings:
    """Eight drawings of some texts for the first seed, best first by CLIP."""

    variant: str
    prompts: tuple[str, ...]

    def __call__(self, results: Results, out: Path) -> Path:
        with extra("look"):
            from matplotlib.figure import Figure

        folder = variant_folder(out, self.variant, results.seeds[0])
        run, judge = tasks.load_run(folder, DALLE), tasks.load_run(folder / "clip", CLIP)
        figure = Figure(figsize=(8, 1.15 * len(self.prompts)), layout="constrained")
        for row, prompt in zip(figure.subplots(len(self.prompts), 8, squeeze=False), self.prompts, strict=True):
            for axis, image in zip(row, best_of(run, judge, prompt, 8, 0), strict=True):
                axis.imshow(image, interpolation="nearest")
                axis.set(xticks=(), yticks=())
            row[0].set_title(prompt, loc="left", fontsize=8)
        figure.savefig(out / "drawings.png", dpi=120)
        return out / "drawings.png"


recipe = Recipe(
    facts=RecipeFacts("dalle2021", 2021, "Zero-shot text-to-image generation", "arXiv:2102.12092", "about 18 minutes"),
    question="Does one transformer over text and image codes draw what the text says, with sparse layers too?",
    variants={
        "sparse layers": DalleVariant(ranked=True),
        "full layers": DalleVariant(settings={"sparse": False}),
        "shuffled texts": DalleVariant(task=ShuffledDalle),
    },
    claims=(
        at_least("real scenes are recognised after encoding and decoding: at least 0.95", 0.95, ("sparse layers", "reads back")),
        at_least("drawings show the colour and the shape of the text: at least 0.85", 0.85, ("sparse layers", "agreement")),
        at_most("shuffled texts: at most 0.25 agree, where chance is 1 / 12", 0.25, ("shuffled texts", "agreement"), kind="control"),
        Claim(
            "row, column and convolutional layers are within 0.05 nats per code of full attention",
            measured("sparse layers", "image_loss") - measured("full layers", "image_loss") <= 0.05,
        ),
        above(
            "the best of eight by CLIP agrees more often than a single drawing",
            ("sparse layers", "agreement, best of 8"),
            ("sparse layers", "agreement"),
        ),
    ),
    pictures=(
        Drawings(
            variant="sparse layers",
            prompts=(
                "a large red circle",
                "a large blue square",
                "a small green triangle",
                "a yellow square at the top left",
                "a blue circle at the bottom",
            ),
        ),
    ),
)
