"""Sentences of a text, by rules: the same text is always split the same way, in any language that ends sentences with these marks.

    >>> split_sentences("Mr. Hall paid $3.50 for it. Was it worth it? Hardly!")
    ['Mr. Hall paid $3.50 for it.', 'Was it worth it?', 'Hardly!']

A sentence ends
    after . ! ? or …, with the quotation marks and brackets that close there, if white space follows and no small letter after it
    after 。 ！ ？ and ｡, without white space
    at a line break, also at HTML's <br>
A single full stop after an abbreviation (Mr. etc. e.g.), after an initial (J. R. R. Tolkien) or a number of a list at the beginning of a line
(1. 2.) ends nothing, unless the line ends there. What is missed makes a long sentence, and models limit their length in tokens.
"""

from __future__ import annotations

import re

ABBREVIATIONS = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "rev",
        "hon",
        "st",
        "sr",
        "jr",
        "gen",
        "col",
        "capt",
        "lt",
        "sgt",
        "sen",
        "rep",
        "gov",
        "mt",
        "ft",
        "fig",
        "figs",
        "eq",
        "eqs",
        "sec",
        "vol",
        "ch",
        "pp",
        "ed",
        "eds",
        "no",
        "nos",
        "vs",
        "cf",
        "al",
        "ca",
        "approx",
        "dept",
        "univ",
        "inc",
        "ltd",
        "co",
        "corp",
        "bros",
        "e.g",
        "i.e",
        "u.s",
        "u.k",
        "u.n",
        "a.m",
        "p.m",
        "ph.d",
        "b.a",
        "m.a",
        "d.c",
        "l.a",
    ]
)  # lower-case, without the last full stop
_BREAK = re.compile(r"<br\s*/?>|[\n\r\v\f\x85\u2028\u2029]+", re.IGNORECASE)
_CLOSING = "\"'”’»)\\]}"
_END = re.compile(  # a run of marks is tried once, from its first: a million full stops take no longer than other text
    rf"(?<![.!?…])[.!?…]++[{_CLOSING}]*+(?=\s++[^a-zß-öø-ÿ])|[。！？｡]+[{_CLOSING}」』）】〉》]*"
)
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«]+\Z")
_LONGEST_WORD = 24  # characters before a full stop that may be an abbreviation


def split_sentences(text: str) -> list[str]:
    """The sentences in order, without the white space around them; none of white space alone."""
    return [text[first:end] for first, end in sentence_spans(text)]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where each sentence begins and ends."""
    found, first = list[tuple[int, int]](), 0
    for line_end, next_line in [*(broken.span() for broken in _BREAK.finditer(text)), (len(text), len(text))]:
        line = first
        for mark in _END.finditer(text, first, line_end):
            if not _abbreviated(text, line, mark):
                found.append((first, mark.end()))
                first = mark.end()
        found.append((first, line_end))
        first = next_line
    return [(end - len(text[first:end].lstrip()), first + len(text[first:end].rstrip())) for first, end in found if text[first:end].strip()]


def _abbreviated(text: str, line: int, mark: re.Match[str]) -> bool:
    """Return whether this full stop belongs to an abbreviation, an initial or the number of a list."""
    if mark[0] != ".":
        return False
    word = _LAST_WORD.search(text[max(line, mark.start() - _LONGEST_WORD) : mark.start()])
    if word is None:
        return False
    begins = mark.start() - len(word[0])
    if word[0].isdecimal():
        return begins - line < 8 and not text[line:begins].strip()
    return (len(word[0]) == 1 and word[0].isupper() and word[0] != "I") or word[0].lower() in ABBREVIATIONS
