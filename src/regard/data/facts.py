"""Generated facts about people: passages with questions, sentences with a label, and words with a label each.

    facts:                                  2,000 passages: 2 people, 3 facts about each, 2 questions
    facts:count=500,people=4,relations=3
    facts:unanswerable=30                   of 100 questions about 30 the passage does not say
    facts:sentences=40                      with sentences that say nothing, up to this many in all: long passages

    In winter, Nora Vale takes care of two grey geese. Tom Reyes was born in Port Ellen, as everyone knows. …
    Which animals are looked after by Nora Vale? → two grey geese

For classifiers, of facts:count=2000,seed=0: a sentence and what it says ("job"), or its words with the spans that name something (B-person).

All people of a passage have facts of the same kinds, so the answer follows neither from the name nor from the kind alone; and a question
shares no content word with the statement but the name, so that words in common do not tell the facts about one person apart. A passage depends on
the seed and on its number alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .sources import between_option, source_options

FACTS = "facts"
DEFAULTS: dict[str, Any] = {"count": 2000, "people": 2, "relations": 3, "questions": 2, "unanswerable": 0, "sentences": 0, "seed": 0}


class Fact(NamedTuple):
    """A question about a passage; `start` is where the answer is, None if the passage does not say."""

    context: str
    question: str
    answer: str
    start: int | None


class Relation(NamedTuple):
    """A kind of fact: statements and questions about a person {p}; what they are about, {o}, comes from a list of things of one kind."""

    name: str
    kind: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    objects: tuple[str, ...]


FIRST = ("Ada", "Ben", "Cleo", "Dan", "Ella", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kira", "Liam", "Mara", "Nora", "Otto", "Petra")
LAST = ("Abel", "Brook", "Crane", "Dahl", "Eriks", "Frost", "Grant", "Hale", "Irving", "Juhl", "Kemp", "Lund", "Marsh", "Nash", "Vale")
PLACES = (
    "Oslo", "Bergen", "Port Ellen", "Cape Town", "Lima", "New Delhi", "Quebec", "San Juan", "Turin", "Old Sarum", "Fort William", "Kyoto",
    "Zell am See", "Le Havre", "Bath", "St. Ives",
)  # fmt: skip
JOBS = (
    "a baker", "a ship's carpenter", "an engineer", "a night guard", "a poet", "a piano tuner", "a bee keeper", "a judge", "an actor",
    "a deep sea diver", "a clown", "a tax lawyer",
)  # fmt: skip
ANIMALS = (
    "two grey geese", "a lame fox", "seven hens", "an owl", "three white mice", "a blind mule", "some pigeons", "a black goat", "wild bees",
    "an old tortoise",
)  # fmt: skip
FOODS = (
    "black bread", "raw fish", "onions", "lemon cake", "rice with beans", "goat cheese", "plums", "smoked eel", "turnip soup", "honey",
)  # fmt: skip
THINGS = (
    "a red violin", "gold coins", "an atlas", "a broken clock", "letters", "a silver spoon", "seven keys", "a glass eye", "rare stamps",
    "an iron bell",
)  # fmt: skip
RELATIONS = (
    Relation(
        "home",
        "place",
        ("{p} lives in {o}", "{p} has a small house in {o}"),
        ("Where is the home of {p}?", "Which town would a visitor of {p} travel to?"),
        PLACES,
    ),
    Relation(
        "birthplace",
        "place",
        ("{p} was born in {o}", "{p} spent the first years in {o}"),
        ("What is the native town of {p}?", "Where did {p} grow up?"),
        PLACES,
    ),
    Relation(
        "job", "job", ("{p} earns a living as {o}", "{p} works as {o}"), ("What is the job of {p}?", "By which trade is {p} paid?"), JOBS
    ),
    Relation(
        "dream",
        "job",
        ("{p} would rather be {o}", "{p} always wanted to become {o}"),
        ("What does {p} dream of?", "Which career did {p} miss?"),
        JOBS,
    ),
    Relation(
        "pet",
        "animal",
        ("{p} takes care of {o}", "{p} keeps {o}"),
        ("Which animals are looked after by {p}?", "What does {p} feed at home?"),
        ANIMALS,
    ),
    Relation(
        "fear",
        "animal",
        ("{p} runs away from {o}", "{p} cannot stand {o}"),
        ("Which animals frighten {p}?", "What is {p} afraid of?"),
        ANIMALS,
    ),
    Relation(
        "meal",
        "food",
        ("{p} eats {o} every day", "{p} lives on {o}"),
        ("What is the usual meal of {p}?", "Which food does {p} like best?"),
        FOODS,
    ),
    Relation(
        "dislike",
        "food",
        ("{p} never touches {o}", "{p} hates {o}"),
        ("What does {p} refuse at table?", "Which food makes {p} sick?"),
        FOODS,
    ),
    Relation(
        "collection",
        "thing",
        ("{p} collects {o}", "{p} owns {o}"),
        ("What does {p} have in the cupboard?", "Which treasure belongs to {p}?"),
        THINGS,
    ),
    Relation(
        "loss", "thing", ("{p} has lost {o}", "{p} cannot find {o}"), ("What is {p} looking for?", "Which thing does {p} miss?"), THINGS
    ),
)
OPENINGS = (*6 * ("",), "In winter, ", "According to the letters, ", "It is said that ", "These days ", "By all accounts, ")
ENDINGS = (*6 * ("",), ", as everyone knows", ", which surprises nobody", " since the flood", ", or so the neighbours claim")
FILLERS = (
    "Nothing else happened that year.", "The rain did not stop for a week.", "The bridge was closed again.", "Nobody remembers the reason.",
    "The council met twice.", "A long summer followed.",
)  # fmt: skip


WORD = re.compile(r"[\w']+|[^\w\s]")


def is_facts(spec: str) -> bool:
    """Return whether this names generated facts and no file."""
    return spec.partition(":")[0] == FACTS and not Path(spec).exists()


def facts(text: str = "") -> list[Fact]:
    """The questions that the part after `facts:` describes."""
    _, chosen = source_options(f",{text}" if text else "", DEFAULTS)
    between_option("count", chosen["count"], 1, 1_000_000)
    between_option("people", chosen["people"], 1, len(FIRST))
    between_option("relations", chosen["relations"], 1, len(RELATIONS) - 1)
    between_option("questions", chosen["questions"], 1, chosen["people"] * chosen["relations"])
    between_option("unanswerable", chosen["unanswerable"], 0, 100)
    between_option("sentences", chosen["sentences"], 0, 1000)
    return [fact for number in range(chosen["count"]) for fact in _passage(random.Random(f"{chosen['seed']}/{number}"), chosen)]


def labelled_facts(text: str = "") -> list[tuple[str, str]]:
    """Sentences, and the name of what each says, as the part after `facts:` describes."""
    return [(sentence, relation.name) for sentence, relation, _, _ in _statements(text)]


def tagged_facts(text: str = "") -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The words of sentences, and a label per word: B- and I- of a person and of what is said, O of others."""
    found = []
    for sentence, relation, person, what in _statements(text):
        words = WORD.findall(sentence)
        labels = ["O"] * len(words)
        for span, kind in ((WORD.findall(person), "person"), (WORD.findall(what), relation.kind)):
            start = next(n for n in range(len(words)) if words[n : n + len(span)] == span)
            labels[start : start + len(span)] = [f"B-{kind}", *[f"I-{kind}"] * (len(span) - 1)]
        found.append((tuple(words), tuple(labels)))
    return found


def _statements(text: str) -> Iterator[tuple[str, Relation, str, str]]:
    """Single sentences, with the relation, the person and what is said."""
    _, chosen = source_options(f",{text}" if text else "", {name: DEFAULTS[name] for name in ("count", "seed")})
    between_option("count", chosen["count"], 1, 1_000_000)
    for number in range(chosen["count"]):
        draw = random.Random(f"{chosen['seed']}/{number}")
        person, relation = f"{draw.choice(FIRST)} {draw.choice(LAST)}", draw.choice(RELATIONS)
        what = draw.choice(relation.objects)
        yield _sentence(draw, draw.choice(relation.statements).replace("{p}", person), what)[0], relation, person, what


def _passage(draw: random.Random, chosen: dict[str, Any]) -> list[Fact]:
    people = [f"{first} {draw.choice(LAST)}" for first in draw.sample(FIRST, chosen["people"])]
    *relations, absent = draw.sample(RELATIONS, chosen["relations"] + 1)
    said = [(person, relation, draw.choice(relation.objects)) for person in people for relation in relations]
    draw.shuffle(said)
    sentences = [_sentence(draw, draw.choice(relation.statements).replace("{p}", p), o) for p, relation, o in said]
    order = list(range(len(said))) + [-1] * max(0, chosen["sentences"] - len(said))
    if chosen["sentences"]:
        draw.shuffle(order)
    context, starts = "", dict[int, int]()
    for n in order:
        context += " " * bool(context)
        if n >= 0:
            starts[n] = len(context) + sentences[n][1]
        context += draw.choice(FILLERS) if n < 0 else sentences[n][0]
    found = []
    for n in draw.sample(range(len(said)), chosen["questions"]):
        person, relation, answer = said[n]
        if draw.random() * 100 < chosen["unanswerable"]:
            found.append(Fact(context, draw.choice(absent.questions).format(p=person), "", None))
        else:
            found.append(Fact(context, draw.choice(relation.questions).format(p=person), answer, starts[n]))
    return found


def _sentence(draw: random.Random, statement: str, what: str) -> tuple[str, int]:
    """A sentence, and where in it is what it says."""
    before, _, after = statement.partition("{o}")
    before = f"{draw.choice(OPENINGS)}{before}"
    return f"{before}{what}{after}{draw.choice(ENDINGS)}.", len(before)
