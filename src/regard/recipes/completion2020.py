"""Make a table of free text by completion: the prompt is the text and the head of a table, the completion its rows.

Paper: Brown et al. 2020, "Language models are few-shot learners", arXiv:2005.14165; the task is the well-known example of the completion
       service it became (fruits of a made-up planet, `stop="\\n\\n"`, `temperature=0`, `max_tokens=…`), with a model trained for it.
Run:   regard run completion2020        Takes: about twenty minutes on two CPU cores; three seeds of two small models.

Sentences of three kinds tell of two or three fruits, their colours and flavours. The names are made of two syllables, and those of the test
are not in the training data: they must be copied from the text. A table is right if it is correct to the letter and ends by itself, at the
blank line. One ablation attends to 3 tokens before in each of four layers, and so never reaches the text from the table; the other samples
at temperature 2.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from operator import eq
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import BOS, PAD, Tokenizer
from ..decode import GenerationOptions, generate
from ..look import capture
from ..look.pictures import draw, png
from ._engine import Claim, Recipe, RecipeFacts, Reevaluation, Results, at_least, measured, validation_curves, variant_folder
from ._engine.puzzles import IGNORE_INDEX
from ._engine.stacks import PuzzleLMVariant
from ._engine.variants import short_training

# fmt: off
SYLLABLES = (
    "neo", "ski", "zle", "lo", "hek", "pou", "nit", "mar", "ple", "gra", "bol", "ven",
    "tul", "wis", "fro", "dax", "kim", "ruf", "sel", "jop", "qua", "bim", "yor", "cet",
)
# fmt: on
NAMES = [one + other + "s" for one in SYLLABLES for other in SYLLABLES if one != other]
COLOURS = ("purple", "grey", "green", "orange", "brown", "blue", "white", "pink")
FLAVOURS = ("sweet", "sour", "bitter", "savoury", "salty", "hot", "mild", "tart")
SENTENCES = (
    "There are {} that grow there, which are {} and taste {}.",
    "There are also {}, a {} fruit that is very {}.",
    "The {} have a {} colour and are more {} than all others.",
)
HEAD = "\n\n| Fruit | Colour | Flavour |\n"
STOP = "\n\n"
GPT, NEAR, HOT = "temperature 0", "attention to 3 tokens per layer", "temperature 2"


def page(rng: random.Random, unseen: bool = False) -> tuple[str, str]:
    """A prompt and its completion."""
    names = rng.sample([name for n, name in enumerate(NAMES) if (n % 4 == 0) == unseen], rng.choice((2, 3)))
    fruits = [(name, rng.choice(COLOURS), rng.choice(FLAVOURS)) for name in names]
    text = " ".join(rng.choice(SENTENCES).format(*fruit) for fruit in fruits)
    return text + HEAD, "\n".join(f"| {' | '.join(fruit)} |" for fruit in fruits) + STOP


@cache
def tokenizer() -> Tokenizer:
    rng = random.Random(0)
    return Tokenizer.train(["".join(page(rng)) for _ in range(500)], "bpe", 420)


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Prompts with their tables; the tokens of the table are the targets."""

    unseen: bool = False  # names of fruits that are kept for the test
    length: int = 128

    @property
    def vocab_size(self) -> int:
        return len(tokenizer())

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        rng = random.Random(int(torch.randint(2**62, (), generator=generator)))
        ids_BL = torch.full((rows, self.length), PAD)
        target_BL = torch.full_like(ids_BL, IGNORE_INDEX)
        for row in range(rows):
            prompt, table = tokenizer().encode_all(page(rng, self.unseen))
            ids = torch.tensor([BOS, *prompt, *table])
            ids_BL[row, : len(ids)] = ids
            target_BL[row, len(prompt) : len(ids) - 1] = ids[len(prompt) + 1 :]
        used = int((ids_BL != PAD).any(0).sum())
        return ids_BL[:, :used], target_BL[:, :used]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """A model that completes unseen texts: trained first, unless `trained` is in `out` already."""

    model: PuzzleLMVariant
    trained: bool = False
    temperature: float = 0.0
    prompts: int = 50

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        training = {} if self.trained else self.model(seed, out)
        rng = random.Random(1)
        pages = [page(rng, unseen=True) for _ in range(self.prompts)]
        options = GenerationOptions(max_tokens=60, stop=(STOP,), temperature=self.temperature, seed=seed)
        found = [some[0] for some in generate(self.model.load(out), tokenizer(), [prompt for prompt, _ in pages], options)]
        tables = [table.removesuffix(STOP) for _, table in pages]
        cells = [_cells(table) for table in tables]
        hits = [sum(map(eq, _cells(done.text), each)) for done, each in zip(found, cells, strict=True)]
        return {
            "exact_match": sum(done.text == table for done, table in zip(found, tables, strict=True)) / len(pages),
            "cell accuracy": sum(hits) / sum(map(len, cells)),
            "stopped": sum(done.finish_reason == "stop" for done in found) / len(pages),
            **training,
        }


def _cells(table: str) -> list[str]:
    return [cell.strip() for line in table.splitlines() for cell in line.strip("| ").split("|")]


def variant(*attention: str) -> Tables:
    settings: dict[str, Any] = {"width": 64, "heads": 4, "head_dim": 16, "depth": 4, "attention": attention}
    train = short_training(1800, 1e-2)
    return Tables(model=PuzzleLMVariant(puzzle=Pages(), test=Pages(unseen=True), train=train, settings=settings, batch_size=16))


VARIANTS = {GPT: variant("local(radius=3)", "softmax"), NEAR: variant("local(radius=3)")}


@torch.no_grad()
def draw_attention(results: Results, out: Path) -> Path:
    """Draw the attention of the last layer while it writes the table."""
    model = VARIANTS[GPT].model.load(variant_folder(out, GPT, results.seeds[0]))
    prompt, table = tokenizer().encode_all(page(random.Random(2), unseen=True))
    ids = [BOS, *prompt, *table]
    with capture(model, layers=[-1], rows=slice(len(prompt), None), tokens=tokenizer().strings(ids)) as maps:
        model(torch.tensor([ids]))
    path = out / "attention.png"
    path.write_bytes(png(draw(maps.all[-1].head())))
    return path


recipe = Recipe(
    facts=RecipeFacts("completion2020", 2020, "Language models are few-shot learners", "arXiv:2005.14165", "about twenty minutes"),
    question="Does a completion make the right table of a text with unseen words, and end by itself?",
    variants={**VARIANTS, HOT: Reevaluation(GPT, replace(VARIANTS[GPT], trained=True, temperature=2.0))},
    claims=(
        at_least("at temperature 0 at least 90 % of the tables are right to the letter", 0.9, (GPT, "exact_match")),
        at_least("and at least 95 % end by themselves", 0.95, (GPT, "stopped")),
        Claim(
            "with attention to 3 tokens per layer: at most 5 % of the tables",
            measured(NEAR, "exact_match") <= 0.05,
            kind="control",
        ),
        Claim(
            "at temperature 2: at most half of what temperature 0 gets right",
            measured(HOT, "exact_match") - measured(GPT, "exact_match") / 2 <= 0,
        ),
    ),
    pictures=(validation_curves("accuracy"), draw_attention),
)
