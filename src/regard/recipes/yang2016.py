"""Documents read sentence by sentence: words are bound to their sentence, and attention finds the sentence that decides.

Paper: Yang et al. 2016, "Hierarchical attention networks for document classification", NAACL (Yelp 2013, 2014, 2015: 68.2, 70.5, 71.0 %; with the
       mean in place of attention 67.0, 69.3, 69.9 %; no flat recurrent model of their table is above 66.0 %).
Run:   regard run yang2016        Takes: some minutes on two CPU cores; three seeds of four small models.

Generated documents of 10 sentences. Every sentence has a colour and a thing at random places among other words; one thing is the prize, and the
label is the colour in the sentence after it. So a model must see which words share a sentence and which sentence counts. The flat model is
the same network with the same number of parameters and the same words, but each document is a single sentence to it: semicolons in place
of full stops. (Where the label is the colour in the same sentence as the prize, the flat model learns it as well: attention over words
suffices.) Ablations have the mean or the maximum in place of attention. Every model is then evaluated on documents of 40 sentences, too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..look.pictures import png
from ..look.trees import draw_document
from ..tasks import Classify, ClassifyOptions, attention_maps, evaluate, load_run
from ..train import TrainOptions
from ._engine import Proportion, Recipe, RecipeFacts, Results, at_least, below, validation_curves
from ._engine.base import variant_folder
from ._engine.variants import short_training, train_run

COLOURS = ("red", "green", "blue", "white", "black", "yellow", "brown", "pink")
THINGS = ("cup", "box", "chair", "lamp", "coat", "book", "door", "ball")
OTHERS = tuple(f"{a}{b}" for a in ("ba", "do", "ki", "lu", "me") for b in ("ra", "ne", "to", "si"))
SETTINGS = {"embedding": 32, "width": 24, "hidden": 48, "dropout": 0.0}
SIZES = {"train": (10_000, 10), "valid": (200, 10), "10": (500, 10), "40": (500, 40)}  # documents, and sentences of each
TRAIN = short_training(500, 3e-3, "adamw", evaluations=6)
WORDS = (8, 14)  # of a sentence, besides the colour and the thing


def prize_document(draw: random.Random, sentences: int, end: str = ".") -> tuple[str, str, int]:
    """A document, the colour after its prize, and which sentence names the prize."""
    prize = draw.randrange(sentences - 1)
    colours, written = draw.choices(COLOURS, k=sentences), []
    for n, colour in enumerate(colours):
        words = [colour, "prize" if n == prize else draw.choice(THINGS), *draw.choices(OTHERS, k=draw.randint(*WORDS))]
        draw.shuffle(words)
        written.append(f"{words[0].capitalize()} {' '.join(words[1:])}{end}")
    return " ".join(written), colours[prize + 1], prize


def write_prizes(path: Path, count: int, sentences: int, seed: int, flat: bool) -> str:
    """A file of documents; to a flat model each is one sentence."""
    draw = random.Random(seed)
    documents = (prize_document(draw, sentences, ";" if flat else ".") for _ in range(count))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\t{label}\n" for text, label, _ in documents))
    return str(path)


@dataclass(frozen=True, kw_only=True)
class Prizes:
    """A model trained on documents of 10 sentences: accuracy on others, and on those of 40 sentences."""

    flat: bool = False
    train: TrainOptions = TRAIN
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        data = out.parent / f"{out.name} data"
        files = {
            name: write_prizes(data / f"{name}.tsv", count, sentences, number, self.flat)
            for number, (name, (count, sentences)) in enumerate(SIZES.items())
        }
        options = ClassifyOptions(
            data=files["train"], valid=files["valid"], test=files["10"], tokenizer="word", lowercase=True, batch_size=32, shares=(0.0, 0.0)
        )
        lengths = {"sentence_length": 1024} if self.flat else {}
        run, training = train_run(
            Classify, options, self.train.replace(seed=seed), out, model="han", settings={**SETTINGS, **lengths, **self.settings}
        )
        found = {f"accuracy, {n} sentences": Proportion(evaluate(run, files[n]).metrics["accuracy"], SIZES[n][0]) for n in ("10", "40")}
        weight = {} if self.settings or self.flat else {"weight of the two sentences": prize_weight(run)}
        return {"accuracy": found["accuracy, 10 sentences"], **found, **weight, **training}


def prize_weight(run: Any, documents: int = 50) -> float:
    """The mean weight of the sentence that names the prize and the one after it: the state of either may hold both."""
    draw, weights = random.Random(7), []
    for _ in range(documents):
        text, _, prize = prize_document(draw, 10)
        weights.append(float(attention_maps(run, text)[1].view("sentences").weights_BHLM[0, 0, 0, prize : prize + 2].sum()))
    return sum(weights) / documents


VARIANTS: dict[str, Any] = {
    "HAN": Prizes(),
    "HAN, mean": Prizes(settings={"pooling": "mean"}),
    "HAN, maximum": Prizes(settings={"pooling": "max"}),
    "flat": Prizes(flat=True),
}


def draw_documents(results: Results, out: Path) -> Path:
    """A document of prizes as the trained HAN reads it."""
    run = load_run(variant_folder(out, "HAN", results.seeds[0]))
    text, _, _ = prize_document(random.Random(3), 10)
    path = out / "document.png"
    path.write_bytes(png(draw_document(attention_maps(run, text)[1].view("document"))))
    return path


recipe = Recipe(
    facts=RecipeFacts("yang2016", 2016, "Hierarchical attention networks for document classification", "NAACL 2016", "some minutes"),
    question="What do sentences and attention add to a recurrent network that reads documents?",
    variants=VARIANTS,
    claims=(
        at_least("HAN: at least 97 % right on documents as long as those of training", 0.97, "HAN"),
        at_least("HAN: at least 95 % right on documents four times as long", 0.95, ("HAN", "accuracy, 40 sentences")),
        at_least("HAN: at least 0.9 of the weight on the two sentences that decide", 0.9, ("HAN", "weight of the two sentences")),
        below("the same network without sentences: at least 20 points lower after as many steps", "flat", "HAN", 0.2),
        below(
            "the mean in place of attention: at least 20 points lower on documents four times as long",
            ("HAN, mean", "accuracy, 40 sentences"),
            ("HAN", "accuracy, 40 sentences"),
            0.2,
        ),
        below(
            "the mean in place of attention: at least 20 points lower on documents as long as those of training", "HAN, mean", "HAN", 0.2
        ),
    ),
    pictures=(validation_curves("loss"), draw_documents),
)
