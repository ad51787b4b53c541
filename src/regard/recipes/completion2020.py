"""Make a table of free text, by going on with it: the prompt is the text and the head of a table, the completion its rows.

Paper: Brown et al. 2020, "Language models are few-shot learners", arXiv:2005.14165; the task is the well-known example of the completion
       service it became (fruits of a made-up planet, `stop="\\n\\n"`, `temperature=0`, `max_tokens=…`), with a model trained for it.
Run:   regard run completion2020        Takes: some ten minutes on two CPU cores; three seeds of two small models.

Sentences of three kinds tell of two or three fruits, their colours and flavours. The names are put together of two syllables, and those of
the test were never trained on: they must be copied out of the text. Right is a table that is right to the letter and ends by itself,
at the blank line. The ablation looks back 3 tokens in each of four layers, and so never reaches the text from the table; the other
draws from the model at temperature 2.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from operator import eq
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import BOS, PAD, Tokenizer
from ..decode import Options, Sampling, complete
from ..look import capture
from ..look.pictures import draw, png
from ._base import Again, Claim, Figures, Recipe, RecipeFacts, folder
from ._language import Drawn, training
from ._pictures import solving
from ._puzzles import NOTHING

SYLLABLES = (
    "neo",
    "ski",
    "zle",
    "lo",
    "hek",
    "pou",
    "nit",
    "mar",
    "ple",
    "gra",
    "bol",
    "ven",
    "tul",
    "wis",
    "fro",
    "dax",
    "kim",
    "ruf",
    "sel",
    "jop",
    "qua",
    "bim",
    "yor",
    "cet",
)
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
GPT, NEAR, HOT = "temperature 0", "looks back 3 tokens a layer", "temperature 2"


def page(dice: random.Random, unseen: bool = False) -> tuple[str, str]:
    """A prompt and the completion it wants."""
    names = dice.sample([name for n, name in enumerate(NAMES) if (n % 4 == 0) == unseen], dice.choice((2, 3)))
    fruits = [(name, dice.choice(COLOURS), dice.choice(FLAVOURS)) for name in names]
    text = " ".join(dice.choice(SENTENCES).format(*fruit) for fruit in fruits)
    return text + HEAD, "\n".join(f"| {' | '.join(fruit)} |" for fruit in fruits) + STOP


@cache
def tokenizer() -> Tokenizer:
    dice = random.Random(0)
    return Tokenizer.train(["".join(page(dice)) for _ in range(500)], "bpe", 420)


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Prompts with their tables; each token of the table wants to be said."""

    unseen: bool = False  # names of fruits that are kept for the test
    length: int = 128

    @property
    def vocab(self) -> int:
        return len(tokenizer())

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        dice = random.Random(int(torch.randint(2**62, ())))
        ids_BL = torch.full((rows, self.length), PAD)
        wanted_BL = torch.full_like(ids_BL, NOTHING)
        for row in range(rows):
            prompt, table = tokenizer().encode_all(page(dice, self.unseen))
            ids = torch.tensor([BOS, *prompt, *table])
            ids_BL[row, : len(ids)] = ids
            wanted_BL[row, len(prompt) : len(ids) - 1] = ids[len(prompt) + 1 :]
        used = int((ids_BL != PAD).any(0).sum())
        return ids_BL[:, :used], wanted_BL[:, :used]


@dataclass(frozen=True, kw_only=True)
class Completed:
    """Tables for unseen texts, by the model that is in `out`."""

    drawn: Drawn
    temperature: float = 0.0
    prompts: int = 50

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        dice = random.Random(1)
        pages = [page(dice, unseen=True) for _ in range(self.prompts)]
        options = Options(most=60, stops=(STOP,), sampling=Sampling(temperature=self.temperature, seed=seed))
        found = [some[0] for some in complete(self.drawn.load(out), tokenizer(), [prompt for prompt, _ in pages], options)]
        wanted = [table.removesuffix(STOP) for _, table in pages]
        cells = [_cells(table) for table in wanted]
        hits = [sum(map(eq, _cells(done.text), each)) for done, each in zip(found, cells, strict=True)]
        return {
            "tables right": sum(done.text == table for done, table in zip(found, wanted, strict=True)) / len(pages),
            "cells right": sum(hits) / sum(map(len, cells)),
            "ended by themselves": sum(done.finish == "stop" for done in found) / len(pages),
        }


def _cells(table: str) -> list[str]:
    return [cell.strip() for line in table.splitlines() for cell in line.strip("| ").split("|")]


@dataclass(frozen=True, kw_only=True)
class Tabled:
    """Taught on pages, then judged by completions."""

    drawn: Drawn
    prompts: int = 50

    def __call__(self, seed: int, out: Path) -> dict[str, float]:
        taught = self.drawn(seed, out)
        return {**Completed(drawn=self.drawn, prompts=self.prompts)(seed, out), **taught}


def variant(*attention: str) -> Tabled:
    settings: dict[str, Any] = {"width": 64, "heads": 4, "head_width": 16, "depth": 4, "attention": attention}
    return Tabled(drawn=Drawn(puzzle=Pages(), test=Pages(unseen=True), train=training(1800, 1e-2), settings=settings, rows=16))


VARIANTS = {GPT: variant("local(radius=3)", "softmax"), NEAR: variant("local(radius=3)")}


@torch.no_grad()
def maps(figures: Figures, out: Path) -> Path:
    """Where the last layer looks while it writes the table."""
    model = VARIANTS[GPT].drawn.load(folder(out, GPT, figures.seeds[0]))
    prompt, table = tokenizer().encode_all(page(random.Random(2), unseen=True))
    ids = [BOS, *prompt, *table]
    with capture(model, layers=[-1], rows=slice(len(prompt), None), tokens=tokenizer().strings(ids)) as seen:
        model(torch.tensor([ids]))
    path = out / "looks.png"
    path.write_bytes(png(draw(seen.all[-1].head())))
    return path


recipe = Recipe(
    facts=RecipeFacts(
        name="completion2020",
        year=2020,
        title="Language models are few-shot learners",
        paper="arXiv:2005.14165",
        takes="some ten minutes on two CPU cores",
    ),
    question="Does a completion make the right table of a text with words never seen before, and end by itself?",
    variants={**VARIANTS, HOT: Again(GPT, Completed(drawn=VARIANTS[GPT].drawn, temperature=2.0))},
    claims=(
        Claim(
            "at temperature 0 at least 90 % of the tables are right to the letter",
            lambda f: f[GPT, "tables right"].low >= 0.9,
            lambda f: str(f[GPT, "tables right"]),
        ),
        Claim(
            "and at least 95 % end by themselves",
            lambda f: f[GPT, "ended by themselves"].low >= 0.95,
            lambda f: str(f[GPT, "ended by themselves"]),
        ),
        Claim(
            "looking back 3 tokens a layer: at most 5 % of the tables",
            lambda f: f[NEAR, "tables right"].high <= 0.05,
            lambda f: f"{f[NEAR, 'tables right']} of the tables, {f[NEAR, 'cells right']} of their cells",
        ),
        Claim(
            "at temperature 2: at most half of what temperature 0 gets right",
            lambda f: f[HOT, "tables right"].mean <= f[GPT, "tables right"].mean / 2,
            lambda f: f"{f[HOT, 'tables right']} against {f[GPT, 'tables right']}",
        ),
    ),
    pictures=(solving, maps),
)
