"""A pointer copies names that were never seen, and coverage stops a decoder from repeating itself.

Paper: See, Liu & Manning 2017, "Get to the point: summarization with pointer-generator networks", arXiv:1704.04368, sections 2 and 5 (there
       CNN/Daily Mail, here generated texts).
Run:   regard run see2017        Takes: about six minutes on one CPU core; three seeds of six small models, equal steps per claim.

Names: texts of 20 words with a name behind each of three markers, to be written in the order of the markers; 200 words in the vocabulary, and
names of the test that occur nowhere in training. Events: texts with eight events such as "Reda met Ambo .", all of which are to be written, in any
order, so that the decoder has to know what it has written; names are outside the vocabulary. The coverage loss acts in the last tenth of the
steps. The ablation has the loss, but its scores do not see the coverage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import tasks
from ..runs import Run
from ..tasks import SummarizationOptions
from ..tasks.summarization import SummaryOptions
from ..train import TrainOptions
from ._engine import Claim, Recipe, RecipeFacts, Results, at_least, at_most, measured, variant_folder
from ._engine.variants import TaskVariant

TRAIN = TrainOptions(lr=5e-3, schedule="constant", warmup_steps=30, average=0, log_every=50)
STEPS = {"names": 200, "events": 500}
SIZE: dict[str, Any] = {"embedding": 24, "width": 24, "dropout": 0.0}
NAMES = SummarizationOptions(data="names:20,count=4000", vocab_size=200, batch_tokens=1344, max_target_length=8, valid_summaries=20)
EVENTS = SummarizationOptions(data="events:8,count=4000", vocab_size=18, batch_tokens=1472, max_target_length=60, valid_summaries=20)


def variant(options: SummarizationOptions, steps: int, settings: dict[str, Any]) -> TaskVariant:
    train = TRAIN.replace(steps=steps, evaluate_every=steps // 2)
    return TaskVariant(task=tasks.Summarization, options=options, train=train, settings=SIZE | settings, evaluate=greedy_metrics)


def transformer() -> TaskVariant:
    """A transformer with a pointer; from scratch it learns to point later, so it takes three times the steps."""
    size = {"width": 48, "heads": 4, "depth": (1, 1), "hidden": 96, "dropout": 0.0}
    train = TRAIN.replace(steps=3 * STEPS["names"], evaluate_every=STEPS["names"])
    return TaskVariant(
        task=tasks.Summarization, options=NAMES, train=train, model="pointer_transformer", settings=size, evaluate=greedy_metrics
    )


def greedy_metrics(run: Run[Any]) -> Mapping[str, float]:
    return tasks.evaluate(run, options=SummaryOptions(beam=1)).metrics


def names(**settings: Any) -> TaskVariant:
    return variant(NAMES, STEPS["names"], settings)


def events(loss: float, seen: bool) -> TaskVariant:
    """Variant with this weight of the coverage loss; `seen`: the scores see the coverage."""
    return variant(replace(EVENTS, coverage=loss), STEPS["events"], {"coverage": seen})


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Source of each word of a summary, with p_gen and coverage, by the first seed."""

    variant: str
    text: str

    def __call__(self, results: Results, out: Path) -> Path:
        run = tasks.load_run(variant_folder(out, self.variant, results.seeds[0]))
        _, maps = tasks.attention_maps(run, self.text)
        path = out / "copied.png"
        maps.save_png(path)
        return path


REPEATED = "repeated_trigrams"
recipe = Recipe(
    facts=RecipeFacts(
        "see2017", 2017, "Get to the point: summarization with pointer-generator networks", "arXiv:1704.04368", "about six minutes"
    ),
    question="Does a pointer copy names it has never seen, and does coverage stop repetition?",
    variants={
        "names, pointer": names(),
        "names, no pointer": names(pointer=False),
        "names, transformer with pointer": transformer(),
        "events, no coverage": events(0.0, seen=False),
        "events, coverage": events(1.0, seen=True),
        "events, coverage loss only": events(1.0, seen=False),
    },
    claims=(
        at_least("pointer: at least 95 % of the texts with unseen names summarised exactly", 0.95, ("names, pointer", "exact_match")),
        Claim(
            "a transformer with a pointer, in three times the steps, is at most 5 points below",
            measured("names, transformer with pointer", "exact_match") - measured("names, pointer", "exact_match") >= -0.05,
            source="Gehrmann et al. 2018, table 1",
            learned=(measured("names, pointer", "exact_match") >= 0.9,),
        ),
        at_most("no pointer: none of them", 0.0, ("names, no pointer", "exact_match"), kind="control"),
        Claim(
            "coverage: at most half as many repeated trigrams as without",
            measured("events, coverage", REPEATED) - measured("events, no coverage", REPEATED) * 0.5 <= 0,
        ),
        Claim(
            "the loss alone, unseen by the scores, leaves more repeated trigrams",
            measured("events, coverage loss only", REPEATED) - measured("events, coverage", REPEATED) >= 0,
        ),
    ),
    pictures=(Copied(variant="names, pointer", text="lo ti third Zumora ka first Pelito mu se second Dakiva no vi lo pu ra ti ka se"),),
)
