"""Tokenizers of transformers read from each kind of file, and ours written for transformers: the same ids on generated texts."""

import json
import random

import pytest

from regard.data import HFTokenizer, Tokenizer
from regard.errors import BadFile, NotSupported

transformers = pytest.importorskip("transformers", reason="the oracle of these tests; pip install 'regard[interop]'")
PIECES = ["The cat", " sat", " on", "\n", "  ", "naïve", "É", "don't", "(", ")", "...", "!", ", ", "☃", "日本語", "\t", "x", "_a", "½", "²", "Ⅷ",
          "e\u0301", "[MASK]", "<mask>", "⟨bos⟩", "🙂", "\u00a0", "10", "‿"]  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "cat", "sat", "##s", "n", "##a", "##ive", "##ï", "##ve", "na", "e", "é",
         "É", "日", "本", "語", "##本", "##語", "!", "(", ")", "x", "<new>", "don", "'", "t"]  # fmt: skip


def texts(count=60):
    draw = random.Random(7)
    return ["", *("".join(draw.choices(PIECES, k=draw.randint(1, 9))) for _ in range(count))]


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "word"])
def test_ours_in_transformers(kind, tmp_path):
    mine = Tokenizer.train(["the cat sat, (on the mat). The naïve 日本語 ☃!\n x ‿ ½ ² Ⅷ"] * 3, kind, vocab_size=300, min_count=1)
    HFTokenizer.from_tokenizer(mine).save_pretrained(tmp_path)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in texts():
        ids = mine.encode(text)
        assert other(text).input_ids == ids, text
        if kind != "word" and 3 not in ids:  # transformers joins words by spaces, also before punctuation marks
            assert other.decode(ids, skip_special_tokens=True) == mine.decode(ids)
    for frame, ends in (("bos", ([1], [])), ("eos", ([], [2])), ("both", ([1], [2]))):
        HFTokenizer.from_tokenizer(mine, frame).save_pretrained(tmp_path)
        assert transformers.AutoTokenizer.from_pretrained(tmp_path)("the cat").input_ids == [*ends[0], *mine.encode("the cat"), *ends[1]]


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "word", "unigram"])
def test_an_end_with_the_largest_id(kind, tmp_path):
    mine = Tokenizer.train(["the cat sat, (on the mat). The naïve 日本語 ☃!\n x ‿ ½ ² Ⅷ"] * 3, kind, vocab_size=300, min_count=1)
    ended = HFTokenizer.from_tokenizer(mine, "both", end_last=True)
    assert ended.roles["eos"] == len(mine) == len(ended) - 1
    assert HFTokenizer.from_tokenizer(ended, "both") is ended  # it knows what it puts around texts
    again = Tokenizer.from_json(json.loads(json.dumps(ended.to_json())))
    ended.save_pretrained(tmp_path)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*texts(), "the ⟨end⟩ cat", "⟨eos⟩"]:  # which are not special in a text
        ids = mine.encode(text)
        assert ended.encode(text) == again.encode(text) == ids, text
        assert other(text).input_ids == [1, *ids, len(mine)], text


def byte_files(folder, special=("<|endoftext|>",)):
    trained = Tokenizer.train(["the cat sat on the mat, the cat sat"] * 3, vocab_size=280)
    vocabulary = {token: n for n, token in enumerate([*special, *trained.vocabulary[4:]])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in trained.merges), encoding="utf-8")


def same(folder, other):
    mine = HFTokenizer.from_directory(folder)
    for text in texts():
        assert mine.encode(text) == other(text, add_special_tokens=False).input_ids, text
        assert mine.encode_pair(text, "the cat")[0] == other(text, "the cat").input_ids, text


@pytest.mark.parametrize("lower", [True, False, None])
@pytest.mark.parametrize("accents", [True, False, None])
@pytest.mark.parametrize("chinese", [True, False])
def test_word_pieces(lower, accents, chinese, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    config = {"do_lower_case": lower, "strip_accents": accents, "tokenize_chinese_chars": chinese}
    config = {key: value for key, value in config.items() if value is not None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    same(tmp_path, transformers.BertTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("kind", ["GPT2", "Roberta"])
def test_byte_level(kind, prefix, tmp_path):
    byte_files(tmp_path, ("<|endoftext|>",) if kind == "GPT2" else ("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefix, "tokenizer_class": f"{kind}Tokenizer"}))
    same(tmp_path, getattr(transformers, f"{kind}Tokenizer").from_pretrained(tmp_path))


@pytest.mark.parametrize("legacy", [True, False])
def test_added_tokens(legacy, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    more = {"☃": len(WORDS), "sat on": len(WORDS) + 1}
    if legacy:
        (tmp_path / "added_tokens.json").write_text(json.dumps(more))
    else:
        plain = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": False}
        every = {word: n for n, word in enumerate(WORDS[:5])}
        added = {str(n): {"content": word, **plain, "special": word in every} for word, n in (every | more).items()}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    same(tmp_path, transformers.BertTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer_config.json", '{"do_lower_case": "no"}', "true or false"),
        ("tokenizer_config.json", '{"tokenizer_class": "BertJapaneseTokenizer"}', "class BertJapanese"),
        ("tokenizer_config.json", '{"mask_token": 7}', "expected a text"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 3}}', "added tokens"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"3": {"content": "the"}}}', "not its own"),
        ("added_tokens.json", '{"☃": 4294967296}', "do not continue"),
        ("tokenizer_config.json", "[" * 100_000, "not JSON"),
        ("vocab.txt", b"\xff\xfe", "UTF-8"),
        ("tokenizer.json", b"\xff\xfe", "UTF-8"),
        ("tokenizer.json", '{"a":' * 100_000, "not JSON"),
        ("vocab.txt", "the\ncat\n", "without"),
    ],
)
def test_files_that_are_damaged(name, content, says, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((BadFile, NotSupported), match=says) as caught:
        HFTokenizer.from_directory(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (2**32 - 1, "the id 4,294,967,295 among 2"),
        (2**32, "the id 4,294,967,296 among 2"),
        (2**70, "303,424 among 2"),
        (-1, "not a file of"),
    ],
)
def test_a_token_id_beyond_all_vocabularies(number, says, tmp_path):
    plain = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0, "b": number}, "unk_token": "a"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    with pytest.raises(BadFile, match=says):
        HFTokenizer.from_directory(tmp_path)


def test_bytes_with_tokens_around_them_are_refused(tmp_path):
    byte_files(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    with pytest.raises(NotSupported, match="add_bos_token"):
        HFTokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("named", [True, False])
def test_what_nobody_calls_special_stays_in_a_text(named, tmp_path):
    """[SEP] of a vocabulary, where neither tokenizer.json nor tokenizer_config.json makes it special."""
    from tokenizers import Tokenizer as Native
    from tokenizers import models, pre_tokenizers

    native = Native(models.WordLevel({token: n for n, token in enumerate(WORDS)}, unk_token="[UNK]"))
    native.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    native.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", **({"sep_token": "[SEP]"} if named else {})}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    other, mine = transformers.AutoTokenizer.from_pretrained(tmp_path), HFTokenizer.from_directory(tmp_path)
    ids = mine.encode("the cat [SEP] sat")
    for each in (mine, HFTokenizer.from_json(mine.to_json()), mine.with_generation({}, [], [])):
        assert each.decode(ids) == other.decode(ids, skip_special_tokens=True) == ("the cat sat" if named else "the cat [SEP] sat")
        assert each.roles["sep"] == 3
