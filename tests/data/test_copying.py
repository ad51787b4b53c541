"""Words outside a vocabulary get ids of their own; generated texts to copy from; docstrings and their first lines."""

import random
import re

import pytest

from regard.data import UNK, Tokenizer, read_pairs
from regard.data.copying import MARKERS
from regard.data.docstring_pairs import pairs_in
from regard.data.open_pairs import encode_article, encode_summary
from regard.errors import MissingFile, NotSupported


@pytest.mark.parametrize("kind", ["word", "char"])
def test_unknown_words_come_back(kind):
    tokenizer = Tokenizer.train(["the cat (sat)"] * 2, kind)
    text = "the dog (sat) § the dog!"
    ids, words = encode_article(tokenizer, text, 100)
    assert max(ids) == len(tokenizer) + len(words) - 1 and UNK not in ids and len(set(words)) == len(words)
    assert tokenizer.decode(ids, words) == text
    assert tokenizer.strings(ids[:-1], words) == [piece.strip() if kind == "word" else piece for piece in tokenizer._pieces(text)]
    summary = encode_summary(tokenizer, "dog cat zoo", words, 100)
    assert tokenizer.decode(summary, words).startswith("dog cat") and UNK in summary
    assert encode_summary(tokenizer, "the the the", words, 2)[-1] != 2  # cut off: it does not end here


def test_ids_are_those_of_the_ordinary_encoding_where_words_are_known():
    generator, tokenizer = random.Random(0), Tokenizer.train(["a b c, d."] * 2, "word")
    for _ in range(50):
        text = " ".join(generator.choice(["a", "b", "c,", "d.", "xx", "yy", "xx!"]) for _ in range(8))
        ids, words = tokenizer.encode_open(text)
        assert [UNK if i >= len(tokenizer) else i for i in ids] == tokenizer.encode(text)
        assert tokenizer.encode_open(text, words) == (ids, words)


def test_subwords_lack_no_word():
    tokenizer = Tokenizer.train(["the cat"] * 2, "bpe", 300)
    assert tokenizer.encode_open("the zoo", longest=3) == (tokenizer.encode("the zoo")[:3], [])


def test_lowercase():
    tokenizer = Tokenizer.train(["The Cat"] * 2, "word", lowercase=True)
    ids, words = tokenizer.encode_open("THE Zoo zoo")
    assert words == ["zoo"] and ids[1] == ids[2] and tokenizer.decode(ids, words) == "the zoo zoo"


def test_names_of_the_test_are_never_seen():
    found = read_pairs("names:20,count=600,pool=300")
    seen = {name for _, summary in found.train for name in summary.split()}
    assert found.test and not seen & {name for _, summary in found.test for name in summary.split()}
    for text, summary in found.train:
        listed = text.split()
        assert len(listed) == 20 and summary.split() == [listed[listed.index(marker) + 1] for marker in MARKERS]
    assert read_pairs("names:20,count=600,pool=300").digest == found.digest
    with pytest.raises(NotSupported, match="at least 6 words"):
        read_pairs("names:5")


def test_events_in_any_order():
    moved = 0
    for text, summary in read_pairs("events:5,count=20").train:
        events = re.findall(r"[A-Z]\w+ (?:met|saw|heard) [A-Z]\w+ \.", text)
        assert len(events) == 5 and sorted(events) == sorted(re.findall(r"\w+ \w+ \w+ \.", summary))
        moved += " ".join(events) != summary
    assert moved
    for wrong in ("events:x", "events:0"):
        with pytest.raises(NotSupported):
            read_pairs(wrong)


SOURCE = '''
class Kept(Base):  # a comment
    """First line says it all.

    {body}
    """

    def short(self):
        """Too short a body here.

        few words
        """

    async def also(
        self, x: str = "a:b",
    ) -> None:
        r"""Second one is kept too.

        {body}
        """

def spills():
    """This first line spills
    over to the next line. {body}"""

text = """Not a docstring at all.

{body}"""
'''


def test_docstrings_of_a_file():
    body = " ".join(f"word{n}" for n in range(25))
    assert list(pairs_in(SOURCE.format(body=body))) == [
        (f"Kept: {body}", "First line says it all."),
        (f"also: {body}", "Second one is kept too."),
    ]


def test_docstrings_of_this_python():
    found = read_pairs("docstrings:stdlib,count=200")
    assert len(found.train) + len(found.valid) + len(found.test) == 200 and read_pairs("docstrings:stdlib,count=200").digest == found.digest
    assert all(3 <= len(summary.split()) <= 30 and len(article.split()) >= 20 for article, summary in found.train)
    with pytest.raises(MissingFile, match="docstrings:stdlib"):
        read_pairs("docstrings:no_such_package")
