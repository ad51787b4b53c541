"""Text to ids and back: what each kind keeps, that training is repeatable, and that no file is trusted."""

import json
import math
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from regard.data import BOS, EOS, PAD, UNK, Tokenizer, Tokenizers
from regard.data.tokens import BYTES, SPECIAL, bpe_with_dropout
from regard.errors import BadFile, BadText, MissingFile, NotSupported, UnknownName

LINES = [
    "the lower the newest, the wider the river",
    "lowest, newer and widest: the low river",
    "naïve cafés über 12 Straßen",
    "don't stop (now)!",
    "the the the low low newest",
] * 3
KINDS = ("bpe", "word", "char", "byte")
TRAINED = {kind: Tokenizer.train(LINES, kind, vocab_size=290) for kind in KINDS}
bpe = TRAINED["bpe"]


def test_the_first_ids_are_the_same_everywhere():
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    for tokenizer in TRAINED.values():
        assert tokenizer.vocabulary[:4] == SPECIAL


def test_bytes_are_written_as_the_library_writes_them():
    assert sorted(BYTES) == sorted(ByteLevel.alphabet())
    text = "".join(map(chr, range(0x250))) + "…😀"
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert "".join(piece for piece, _ in pieces) == "".join(BYTES[byte] for byte in text.encode())


@settings(max_examples=150)
@given(st.text())
def test_bytes_come_back(text):
    for kind in ("bpe", "byte"):
        ids = TRAINED[kind].encode(text)
        assert TRAINED[kind].decode(ids) == text
        assert all(i > UNK for i in ids)


@settings(max_examples=100)
@given(st.text(), st.integers(0, 2**31), st.floats(0.01, 1))
def test_dropout_changes_the_tokens_and_not_the_text(text, seed, dropout):
    ids = bpe.encode(text, dropout, seed)
    assert bpe.decode(ids) == text
    assert ids == bpe.encode(text, dropout, seed)
    assert len(ids) >= len(bpe.encode(text))


@settings(max_examples=100)
@given(st.lists(st.sampled_from(sorted(set(" ".join(LINES).split()))), max_size=8))
def test_words_come_back_up_to_white_space(words):
    tokenizer = TRAINED["word"]
    assert tokenizer.decode(tokenizer.encode("  \t".join(words) + " ")) == " ".join(words)


@settings(max_examples=200)
@given(st.text(alphabet="⟨⟩padbosun ,k<>/", max_size=20))
def test_no_text_becomes_a_special_token(text):
    for tokenizer in TRAINED.values():
        assert not {PAD, BOS, EOS} & set(tokenizer.encode(text))


@settings(max_examples=200)
@given(st.text(alphabet="ab1_ ,()'-²½é\t\u3000😀\u0301ก็", max_size=20))
def test_marks_stand_as_they_stood(text):
    marks = Tokenizer.train([text] * 2, "word", vocab_size=100)
    assert marks.decode(marks.encode(text)) == " ".join(text.split())


def test_a_word_is_one_token_beside_any_mark():
    tokenizer = Tokenizer.train(["a, (a) a-a a! 'a'"] * 2, "word")
    assert sorted(tokenizer.vocabulary[4:]) == [" '", " (", "! ", "' ", ") ", ", ", "-", "a"]


def test_names_of_special_tokens_are_ordinary_text():
    text = "".join(SPECIAL) + "<pad><s></s>[PAD]"
    greedy = Tokenizer.train([text] * 50, "bpe", vocab_size=400)  # would merge the whole text into one token
    for tokenizer in (bpe, greedy):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert min(tokenizer.encode(text)) > UNK


def test_what_is_unknown_shows():
    words, characters = TRAINED["word"], TRAINED["char"]
    assert words.encode("the zebra") == [words.encode("the")[0], UNK]
    assert words.decode(words.encode("the zebra, low")) == "the ⟨unk⟩, low"
    assert characters.decode(characters.encode("tЖt")) == "t⟨unk⟩t"


def test_special_ids_vanish_in_text_and_show_in_labels():
    ids = [BOS, *bpe.encode("the low"), EOS, PAD, PAD]
    assert bpe.decode(ids) == "the low"
    assert bpe.strings(ids)[0] == "⟨bos⟩" and bpe.strings(ids)[-3:] == ["⟨eos⟩", "⟨pad⟩", "⟨pad⟩"]
    assert "".join(bpe.strings(ids)[1:-3]) == "the low"


def test_half_a_character_shows_as_bytes():
    half = TRAINED["byte"].encode("é")
    assert TRAINED["byte"].strings(half) == ["\\xc3", "\\xa9"]
    assert TRAINED["byte"].decode(half[:1]) == "�"


@settings(max_examples=100)
@given(st.text(alphabet="abte low,é \t\n😀", max_size=30), st.sampled_from(KINDS))
def test_tokens_of_a_word_make_up_the_word(text, kind):
    tokenizer = TRAINED[kind]
    ids = [BOS, *tokenizer.encode(text), EOS]
    numbers, words = tokenizer.word_numbers(ids), tokenizer.words(ids)
    assert len(numbers) == len(ids) and numbers[0] == numbers[-1] == -1
    assert max(numbers) + 1 == len(words) and set(numbers) - {-1} == set(range(len(words)))
    for number, word in enumerate(words):
        assert tokenizer.decode(i for i, n in zip(ids, numbers, strict=True) if n == number).strip() == word
    if kind in ("bpe", "byte"):
        assert words == [word.decode() for word in text.encode().split()]


def test_word_numbers_by_hand():
    ids = TRAINED["word"].encode("don't stop, now")
    assert TRAINED["word"].strings(ids) == ["don", "'", "t", "stop", ",", "now"]
    assert TRAINED["word"].word_numbers([BOS, *ids]) == [-1, 0, 0, 0, 1, 1, 2]


# -- training ----------------------------------------------------------------------------------------------------------


def test_training_is_repeatable_in_another_process():
    code = """
import hashlib
from regard.data import Tokenizer
lines = ["ab ba cd dc ef fe gh hg", "ij ji kl lk ab cd", "ö ü ä ß"] * 2  # all pairs tie
found = [Tokenizer.train(iter(lines), kind, vocab_size=275) for kind in ("bpe", "word", "char", "byte")]
digest = hashlib.sha256(repr([(one.vocabulary, one.merges) for one in found]).encode()).hexdigest()
"""
    here: dict[str, str] = {}
    for hash_seed, threads in (("1", "1"), ("2", "4")):
        environment = {"PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": threads, "PYTHONPATH": ":".join(filter(None, sys.path))}
        ran = subprocess.run([sys.executable, "-c", code + "print(digest)"], capture_output=True, text=True, check=True, env=environment)
        here[hash_seed] = ran.stdout
    assert here["1"] == here["2"] and len(here["1"]) > 60


def test_first_merges_by_hand():
    # "low" 4 times: l+o and o+w tie at 4, the pair with smaller ids goes first; then lo+w
    merges = Tokenizer.train(["low low low low"], "bpe", vocab_size=263, min_count=2).merges
    assert [m for m in merges if "Ġ" not in "".join(m)][:2] == [("l", "o"), ("lo", "w")]


def test_dropout_of_nothing_is_the_usual_cut_and_of_all_is_bytes():
    for line in LINES:
        assert bpe.encode(line, dropout=1e-15) == bpe.encode(line)
        assert len(bpe.encode(line, dropout=1.0)) == len(line.encode())
    assert len({tuple(bpe.encode(LINES[0], 0.3, seed)) for seed in range(8)}) > 4
    together = bpe.encode_all([LINES[0]] * 8, 0.3)
    assert len({tuple(ids) for ids in together}) > 4  # copies of a sentence are cut in different ways


def test_dropout_has_the_distribution_of_its_definition():
    """All ways of leaving out merges, weighed: at each step every pair is left out or not, then the first by rank is joined."""
    ranks, p = {("a", "b"): 0, ("b", "c"): 1, ("ab", "ab"): 2, ("c", "a"): 3, ("ab", "c"): 4}, 0.4

    def ends(symbols):
        pairs = [(ranks[pair], at) for at, pair in enumerate(pairwise(symbols)) if pair in ranks]
        found = Counter()
        for kept in product((False, True), repeat=len(pairs)):
            weight = math.prod(1 - p if one else p for one in kept)
            left = [pair for pair, one in zip(pairs, kept, strict=True) if one]
            if not left:
                found[symbols] += weight
                continue
            at = min(left)[1]
            for end, share in ends((*symbols[:at], symbols[at] + symbols[at + 1], *symbols[at + 2 :])).items():
                found[end] += weight * share
        return found

    expected, draws = ends(tuple("ababca")), 20_000
    seen = Counter(tuple(bpe_with_dropout("ababca", ranks, p, random.Random(n))) for n in range(draws))
    assert seen.keys() <= expected.keys() and len(expected) > 8
    for end, share in expected.items():
        assert abs(seen[end] - draws * share) < 4.5 * (draws * share * (1 - share)) ** 0.5 + 1


def test_words_are_counted():
    counts = Counter({"b": 3, "a": 3, "c": 2, "d": 1})
    tokenizer = Tokenizer.train([" ".join(counts.elements())], "word", vocab_size=100)
    assert tokenizer.vocabulary[4:] == ("a", "b", "c")
    assert Tokenizer.train([" ".join(counts.elements())], "word", vocab_size=6, min_count=1).vocabulary[4:] == ("a", "b")


def test_bpe_takes_fewer_tokens_than_bytes():
    assert sum(len(bpe.encode(line)) for line in LINES) < 0.7 * sum(len(line.encode()) for line in LINES)
    assert len(bpe) <= 290


def test_what_cannot_be_asked():
    with pytest.raises(UnknownName, match="did you mean 'word'"):
        Tokenizer.train(LINES, "words")
    with pytest.raises(NotSupported, match="260"):
        Tokenizer.train(LINES, "bpe", vocab_size=259)
    with pytest.raises(NotSupported, match="kind bpe"):
        TRAINED["word"].encode("a", dropout=0.1)
    with pytest.raises(NotSupported, match="probability"):
        bpe.encode("a", dropout=1.5)
    for tokenizer in TRAINED.values():
        with pytest.raises(BadText, match="surrogate"):
            tokenizer.encode("a\ud800")
    with pytest.raises(BadText):
        Tokenizer.train(["\udfff"], "bpe")


# -- on disk -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_is_the_same(tmp_path, kind):
    joint = Tokenizers.load(Tokenizers(TRAINED[kind]).save(tmp_path / "tokenizer.json"))
    assert joint.joint and joint.source == TRAINED[kind]
    assert joint.source.encode_all(LINES) == TRAINED[kind].encode_all(LINES)
    other = Tokenizer.train(["some other text"] * 2, "word")
    two = Tokenizers.load(Tokenizers(TRAINED[kind], other).save(tmp_path / "tokenizer.json"))
    assert not two.joint and (two.source, two.target) == (TRAINED[kind], other)


def test_joint_or_separate():
    pairs = [("aa bb", "xx yy")] * 3
    joint, two = Tokenizers.train(pairs, "word"), Tokenizers.train(pairs, "word", joint=False)
    assert joint.joint and set(joint.source.vocabulary[4:]) == {"aa", "bb", "xx", "yy"}
    assert (two.source.vocabulary[4:], two.target.vocabulary[4:]) == (("aa", "bb"), ("xx", "yy"))


def broken(change):
    described = {"format": "regard.tokenizer", "format_version": 1, "tokenizers": [bpe.to_json()]}
    change(described)
    return json.dumps(described)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[]", "format"),
        ("{}", "format"),
        (broken(lambda d: d.update(format_version=2)), "reads 1"),
        (broken(lambda d: d.update(tokenizers=[])), "one .joint. or two"),
        (broken(lambda d: d.update(tokenizers=[1])), "kind"),
        (broken(lambda d: d["tokenizers"][0].update(kind="piece")), "kind"),
        (broken(lambda d: d["tokenizers"][0].update(kind=["bpe"])), "kind"),
        (broken(lambda d: d["tokenizers"][0].update(kind="word")), "only bpe"),
        (broken(lambda d: d["tokenizers"][0].update(vocabulary="abc")), "list of strings"),
        (broken(lambda d: d["tokenizers"][0]["vocabulary"].append(7)), "list of strings"),
        (broken(lambda d: d["tokenizers"][0]["vocabulary"].append("a")), "twice"),
        (broken(lambda d: d["tokenizers"][0]["vocabulary"].reverse()), "begin with"),
        (broken(lambda d: d["tokenizers"][0]["vocabulary"].remove("z")), "256"),
        (broken(lambda d: d["tokenizers"][0]["vocabulary"].append("Ж")), "256"),
        (broken(lambda d: d["tokenizers"][0]["merges"].append(["z", "z"])), "merges"),
        (broken(lambda d: d["tokenizers"][0]["merges"].append(["z"])), "merges"),
        (broken(lambda d: d["tokenizers"][0].update(merges={"a": 1})), "merges"),
        (broken(lambda d: d["tokenizers"][0].update(kind="char", merges=[], vocabulary=[*SPECIAL, "\ud800"])), "not text"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(tmp_path, text, says):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(BadFile, match=says) as caught:
        Tokenizers.load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(MissingFile, match="no such file"):
        Tokenizers.load(tmp_path / "tokenizer.json")
    with pytest.raises(BadFile):
        Tokenizers.load(tmp_path)
    (tmp_path / "t.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(BadFile):
        Tokenizers.load(tmp_path / "t.json")
