"""Sentences by rules: what ends one, what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.sentences import sentence_spans, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        (" \n\t ", []),
        ("no end", ["no end"]),
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ("It is small. or not. Yes", ["It is small. or not.", "Yes"]),
        ("Wow!!! Really?! OK", ["Wow!!!", "Really?!", "OK"]),
        ("He said “Go.” She went. (Or so.) Then", ["He said “Go.”", "She went.", "(Or so.)", "Then"]),
        ("Well... maybe. Well... No", ["Well... maybe.", "Well...", "No"]),
        ("Mr. Hall met Dr. No at 5 p.m. Tuesday.", ["Mr. Hall met Dr. No at 5 p.m. Tuesday."]),
        ("See e.g. Smith et al. 2016. It works.", ["See e.g. Smith et al. 2016.", "It works."]),
        ("J. R. R. Tolkien wrote it. So did I. You?", ["J. R. R. Tolkien wrote it.", "So did I.", "You?"]),
        ("It costs $3.50 or 1.000,00. Version 2.0 is out", ["It costs $3.50 or 1.000,00.", "Version 2.0 is out"]),
        ("1. First\n2. Second. Third 3. Fourth", ["1. First", "2. Second.", "Third 3.", "Fourth"]),
        ("A title\n\nThe text\r\nends", ["A title", "The text", "ends"]),
        ("Good.<br /><br />Bad<BR>Ugly", ["Good.", "Bad", "Ugly"]),
        ("今日は晴れ。明日は？「はい。」そう！", ["今日は晴れ。", "明日は？", "「はい。」", "そう！"]),
        ("Das geht. Über alles.", ["Das geht.", "Über alles."]),
    ],
)
def test_by_hand(text, sentences):
    assert split_sentences(text) == sentences


@given(st.text(st.sampled_from("aB .!?…\"'()\n1。<br/>"), max_size=60))
def test_nothing_is_lost(text):
    spans, covered = sentence_spans(text), 0
    for first, end in spans:
        between = text[covered:first].replace("<br/>", "").replace("<br>", "")
        assert not between.strip() and first < end and text[first:end] == text[first:end].strip()
        covered = end
    assert not text[covered:].replace("<br/>", "").replace("<br>", "").strip()


@pytest.mark.parametrize("piece", [".", ". ", " ", "<br ", "1. A ", '."', "a. ", "。", "Mr. "])
def test_hostile_text_ends(piece):
    """A step per character: with one per pair of characters, some of these would take hours."""
    assert len(split_sentences(piece * 50_000)) <= 50_000
