"""Generated texts whose summary is made of their own words: what a model that copies can do, and one that only generates cannot.

    names:20,count=5000        lo first Ambo mu ti second Reda …  →  Ambo Reda …: the names behind three markers, in the order of the markers
    events:8,count=5000        … Reda met Ambo . lo Timo saw Kasu . …  →  all eight events in any order: after each, which is still missing?

A name belongs to training, validation or test by its hash, and a text has names of one part only: those of a test are never seen in training.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

from ..errors import NotSupported
from .splits import Row

MARKERS = ("first", "second", "third")
NOISE = ("lo", "mu", "ti", "ra", "se", "no", "vi", "ka", "pu", "de")
VERBS = ("met", "saw", "heard")
SYLLABLES = tuple(a + b for a, b in product("bdfgklmnprstvz", "aeiou"))


def pool_of(size: int, generator: random.Random) -> list[str]:
    """Different names of three syllables."""
    return generator.sample([(a + b + c).capitalize() for a, b, c in product(SYLLABLES, repeat=3)], size)


def names(length: int, count: int, pool: int, seed: int, part: Callable[[str], str]) -> list[Row]:
    """Texts of `length` words: three names of a pool, each behind a marker, among noise; the summary has them in the order of the markers."""
    if length < 2 * len(MARKERS):
        raise NotSupported(f"names:{length}: expected at least {2 * len(MARKERS)} words, for {len(MARKERS)} markers with a name each")
    generator, together = random.Random(seed), dict[str, list[str]]()
    for name in pool_of(pool, generator):
        together.setdefault(part(name), []).append(name)
    every = [name for some in together.values() for name in some]
    rows = []
    for _ in range(count):
        first = generator.choice(every)
        chosen = [first, *generator.choices(together[part(first)], k=len(MARKERS) - 1)]
        marked = list(zip(MARKERS, chosen, strict=True))
        generator.shuffle(marked)
        at = sorted(generator.sample(range(length - len(MARKERS)), len(MARKERS)))
        text = [[generator.choice(NOISE)] for _ in range(length - len(MARKERS))]
        for place, pair in zip(at, marked, strict=True):
            text[place] = list(pair)
        rows.append((first, " ".join(word for some in text for word in some), " ".join(chosen)))
    return rows


def events(number: int, count: int, seed: int) -> list[Row]:
    """Texts with this many events, such as "Reda met Ambo .", each behind some noise; the summary has the events only, in any order.

    A summary that starts an event over has lost track of what it has said: the order tells nothing.
    """
    generator, rows = random.Random(seed), []
    pool = pool_of(2000, generator)
    for _ in range(count):
        said = [[generator.choice(pool), generator.choice(VERBS), generator.choice(pool), "."] for _ in range(number)]
        text = " ".join(word for event in said for word in (*generator.choices(NOISE, k=generator.randrange(1, 4)), *event))
        rows.append((text, text, " ".join(word for event in generator.sample(said, number) for word in event)))
    return rows
