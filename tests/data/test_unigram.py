"""Unigram vocabularies, lower-casing, and tokenizer files that the user brings."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from regard.data import Corpus, Texts, Tokenizer, Tokenizers, load_tokenizers
from regard.data.hf_tokenizer import HFTokenizer
from regard.data.tokens import BOS, EOS
from regard.errors import BadFile, MissingFile, NotSupported

LINES = ["the cat sat on the mat", "the dog sat on the log", "Naïve cats, naïve dogs!", "a man in a blue shirt"] * 20


@pytest.fixture(scope="module")
def unigram():
    return Tokenizer.train(Texts("python-docs").train(), "unigram", 800)


def test_frequent_words_are_pieces(unigram):
    assert len(unigram) == 800 and {"▁the", "▁is", "▁function"} <= set(unigram.vocabulary)
    assert unigram.strings(unigram.encode("cat is the function"))[-3:] == ["is", "the", "function"]
    assert unigram.words(unigram.encode("the cat")) == ["the", "cat"]
    assert unigram.word_numbers(unigram.encode("the cat is"))[-1] == 2


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=60))
def test_every_text_comes_back(unigram, text):
    ids = unigram.encode(text)
    assert unigram.decode([BOS, *ids, EOS]) == text and not {0, 1, 2, 3} & set(ids)


def test_names_of_special_tokens_are_text(unigram):
    for name in ("⟨eos⟩", "a⟨pad⟩b", "<0x41>", "x<0xFF><0x0"):
        assert unigram.decode(unigram.encode(name)) == name and not {0, 1, 2, 3} & set(unigram.encode(name))


def test_it_is_saved_and_loaded(unigram, tmp_path):
    Tokenizers(unigram).save(tmp_path / "tokenizer.json")
    again = Tokenizers.load(tmp_path / "tokenizer.json").source
    assert again == unigram and again.encode("the naïve ☃") == unigram.encode("the naïve ☃")
    with pytest.raises(NotSupported, match="unigram needs at least 261"):
        Tokenizer.train(LINES, "unigram", 200)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char", "byte"])
def test_lowercase(kind, tmp_path):
    plain, lower = (Tokenizer.train(LINES, kind, 400, 1, lowercase=low) for low in (False, True))
    assert lower.encode("The CAT Sat") == lower.encode("the cat sat") and lower.decode(lower.encode("The CAT")) == "the cat"
    assert plain.decode(plain.encode("Naïve")) == "Naïve" and plain != lower
    Tokenizers(lower).save(tmp_path / "t.json")
    assert Tokenizers.load(tmp_path / "t.json").source == lower and Tokenizers.load(tmp_path / "t.json").source.encode(
        "CAT"
    ) == lower.encode("cat")


def native(*special):
    made = tokenizers.Tokenizer(models.WordLevel({name: n for n, name in enumerate(["[UNK]", "the", "cat", "sat"])}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(list(special))
    return made


def test_a_file_of_the_user_gets_the_special_tokens_it_lacks(tmp_path):
    native().save(str(tmp_path / "mine.json"))
    (found,) = {load_tokenizers(tmp_path / "mine.json").source, load_tokenizers(tmp_path / "mine.json").target}
    assert isinstance(found, HFTokenizer) and found.encode("the cat") == [1, 2] and len(found) == 8
    assert sorted({found.begin_id, found.end_id, found.mask_id, found.pad_id}) == [4, 5, 6, 7]
    corpus = Corpus.of([("the cat", "cat the")], Tokenizers(found))
    assert corpus.source[0].tolist() == [1, 2, found.target_end_id] and corpus.target[0].tolist() == [
        found.target_start_id,
        2,
        1,
        found.target_end_id,
    ]
    native("[PAD]", "[CLS]", "[SEP]", "[MASK]").save(str(tmp_path / "tokenizer.json"))
    complete = load_tokenizers(tmp_path).source
    assert len(complete) == 8 and complete.begin_id == 5 and complete == load_tokenizers(tmp_path / "tokenizer.json").source


def test_what_is_no_tokenizer(tmp_path, unigram):
    with pytest.raises(MissingFile, match="no such file"):
        load_tokenizers(tmp_path / "none.json")
    with pytest.raises(MissingFile, match=r"no tokenizer\.json"):
        load_tokenizers(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(BadFile, match="not a tokenizer in JSON"):
        load_tokenizers(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text(json.dumps({"model": 1}))
    with pytest.raises(BadFile, match="not a file of the tokenizers library"):
        load_tokenizers(tmp_path / "bad.json")
    Tokenizers(unigram).save(tmp_path / "ours.json")
    assert load_tokenizers(tmp_path / "ours.json").source == unigram
    with pytest.raises(NotSupported, match="--lowercase with --tokenizer-file"):
        load_tokenizers(tmp_path / "ours.json", lowercase=True)
