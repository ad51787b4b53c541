"""Dates written in two locales: the order of day, month and year changes, so a translator has to reorder.

    dates:en-fr                  Tuesday, September 27, 1994 → mardi 27 septembre 1994
    dates:en-iso,count=5000      9/27/94 → 1994-09-27

Text comes from `Babel` (CLDR), in its four formats: full, long, medium, short; both sides have the same one. Days are drawn
from 1970 to 2069, so that a year of two digits means one year. Where two formats write a day alike on the source side (May
3, 1994), only the longer counts: a source has one translation. All formats of a day fall in the same split.
"""

from __future__ import annotations

import datetime
import difflib
import random
from collections.abc import Callable

from ..errors import UnknownName
from ._options import between, options, two
from .splits import Row

FORMATS = ("full", "long", "medium", "short")
_FIRST, _LAST = datetime.date(1970, 1, 1).toordinal(), datetime.date(2069, 12, 31).toordinal()


def rows(text: str, part: Callable[[str], str]) -> list[Row]:
    """The pairs of a source like `en-fr,count=5000`, each source sentence once."""
    head, chosen = options(text, {"count": 10_000, "seed": 0})
    count = between("count", chosen["count"], 1, len(FORMATS) * (_LAST - _FIRST + 1))
    write_source, write_target = (_writer(locale) for locale in two(head, "dates:en-fr"))
    drawn = random.Random(chosen["seed"]).sample(range(_FIRST * len(FORMATS), (_LAST + 1) * len(FORMATS)), count)
    made: list[Row] = []
    for number in drawn:
        day, form = datetime.date.fromordinal(number // len(FORMATS)), number % len(FORMATS)
        source = write_source(day, FORMATS[form])
        form = next(longer for longer in range(form + 1) if longer == form or write_source(day, FORMATS[longer]) == source)
        made.append((day.isoformat(), source, write_target(day, FORMATS[form])))
    return list(dict.fromkeys(made))


def _writer(name: str) -> Callable[[datetime.date, str], str]:
    if name == "iso":
        return lambda day, form: day.isoformat()
    from babel.core import Locale, UnknownLocaleError
    from babel.dates import format_date
    from babel.localedata import locale_identifiers

    try:
        locale = Locale.parse(name)
    except (UnknownLocaleError, ValueError):
        near = difflib.get_close_matches(name, sorted(locale_identifiers()), cutoff=0.4)  # there are a thousand
        raise UnknownName("locale", name, near or ["iso", "en", "fr", "de", "ja"]) from None
    return lambda day, form: " ".join(format_date(day, form, locale).split())
