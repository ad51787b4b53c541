"""Numbers written out in two languages: unlimited sentences whose translation is known to be right.

    numbers:en-de                          one hundred and one → einhunderteins, all numbers below 10,000
    numbers:en-digits,below=1000           forty-two → 4 2
    numbers:en-de,list=3,count=5000        lists of one to three numbers: five; twelve → fünf; zwölf
    numbers:en-de_parts                    one hundred and one → ein hundert eins: German, cut where its words are put together

Words come from `num2words`. Known faults of it lie above: German 101,001 becomes "einhunderteinstausendeins", a million gets
spaces and a capital. So numbers stay below 100,000, where German was checked against a second writing of the rules. For
other languages its output is used unchanged: good enough for practice, no authority on grammar (Amharic ends at 1,099 and says so;
Azerbaijani writes 91,260 like 90,260).

A number belongs to training, validation or test by the hash of its digits, whatever the list; a list holds numbers of one
part only. So no test number is ever seen in training, and lists of three and of six share one split.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from ..errors import NotSupported, UnknownName
from ._options import between, options, two
from .splits import Row

HIGHEST = 100_000
_PARTS = re.compile("tausend|hundert|und|null|eins?|zwei|drei|vier|fünf|sechs?|sieb(?:en)?|acht|neun|zehn|elf|zwölf|zwan|zig|ßig")


def rows(text: str, part: Callable[[str], str]) -> list[Row]:
    """The pairs of a source like `en-de,below=1000`; `part` tells which split a key falls in."""
    head, chosen = options(text, {"below": 10_000, "list": 1, "count": 0, "seed": 0})
    below, longest = between("below", chosen["below"], 2, HIGHEST), between("list", chosen["list"], 1, 100)
    spell_source, spell_target = (_spell(language) for language in two(head, "numbers:en-de"))
    generator = random.Random(chosen["seed"])
    if longest == 1:
        numbers = range(below)
        count = between("count", chosen["count"] or below, 1, below)
        lists = [[n] for n in (numbers if count == below else sorted(generator.sample(numbers, count)))]
    else:
        count = between("count", chosen["count"] or 20_000, 1, 10_000_000)
        together: dict[str, list[int]] = {}
        for n in range(below):
            together.setdefault(part(str(n)), []).append(n)
        lists = []
        for _ in range(count):
            first = generator.randrange(below)
            others = together[part(str(first))]
            lists.append([first, *(others[generator.randrange(len(others))] for _ in range(generator.randrange(longest)))])
    return [(str(some[0]), "; ".join(map(spell_source, some)), "; ".join(map(spell_target, some))) for some in lists]


def _spell(language: str) -> Callable[[int], str]:
    if language == "digits":
        return lambda n: " ".join(str(n))
    from num2words import CONVERTER_CLASSES

    if language == "de_parts":
        german = _spell("de")
        return lambda n: " ".join(_PARTS.findall(german(n)))
    if language not in CONVERTER_CLASSES:
        raise UnknownName("language of numbers", language, ["digits", "de_parts", *sorted(CONVERTER_CLASSES)])
    written: dict[int, str] = {}

    def spell(n: int) -> str:
        if n not in written:
            try:
                written[n] = " ".join(CONVERTER_CLASSES[language].to_cardinal(n).split())
            except Exception as wrong:  # whatever a language's rules stumble over
                raise NotSupported(f"num2words cannot write {n} in {language!r} ({wrong!r}); change the language or below") from wrong
        return written[n]

    return spell
