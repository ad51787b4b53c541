"""Running text: every source, every kind of bad line, parts that nothing leaks through, and tokens kept on disk."""

import gzip
import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from regard.data import Texts, TokenizedText, Tokenizer, count_characters, text, tokenize_texts, train_tokenizer
from regard.data.pace import Pace
from regard.data.splits import choose_amounts
from regard.data.tokens import BOS, EOS, UNK
from regard.errors import BadFile, CannotSave, MissingFile, NotSupported

DOCUMENTS = [f"Document {n}.\nIt has {n} words,\n\n  and two more lines é😀.\n" for n in range(60)]
WHOLE = {"shares": (0.0, 0.0)}


def documents(texts, part=None):
    """Whole documents again, of one part or all."""
    found = []
    for piece in texts.pieces():
        if part in (None, piece.part):
            found.append(piece.text) if piece.begins else found.__setitem__(-1, found[-1] + piece.text)
    return found


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return write


# -- where text comes from -----------------------------------------------------------------------------------------------


def test_files_lines_and_folders_give_the_same(write, tmp_path):
    some = DOCUMENTS[:5]
    for n, document in enumerate(some):
        write(f"folder/{n}/text.txt{'.gz' if n % 2 else ''}", document)
    write("folder/picture.png", b"\0\xff")
    flat = write("a.jsonl", "".join(json.dumps({"text": d}) + "\n" for d in some))
    deep = write("b.jsonl.gz", "".join(json.dumps({"page": {"body": d}}) + "\r\n\n" for d in some))
    marked = write("c.txt", "<|end|>\n".join(some))
    texts = [
        Texts(tmp_path / "folder", **WHOLE),
        Texts(flat, **WHOLE),
        Texts(deep, field="page.body", **WHOLE),
        Texts(marked, separator="<|end|>", **WHOLE),
        Texts([tmp_path / "folder" / "0", f"{tmp_path}/folder/1", *(tmp_path / "folder" / str(n) / "text.txt" for n in (2,)),
               tmp_path / "folder" / "3", tmp_path / "folder" / "4"], **WHOLE),
    ]  # fmt: skip
    assert all(documents(one) == some for one in texts)
    assert len({one.survey.digest for one in texts}) == 1
    assert len(documents(Texts(marked, separator="", **WHOLE))) == len(some) + 1  # a blank line stands in each
    assert documents(Texts(f"{flat} {marked}", **WHOLE))[-1] == "<|end|>\n".join(some)


def test_python_documents_are_there():
    texts = Texts("python-docs")
    parts = Counter(piece.part for piece in texts.pieces() if piece.begins)
    assert min(parts["valid"], parts["test"]) >= 1 and parts["train"] > 40
    assert "documents" in str(texts) and any("lambda" in one for one in documents(texts))


@pytest.mark.parametrize(
    ("given", "error", "says"), [("nowhere", MissingFile, "python-docs"), ("", MissingFile, "no such"), ([], NotSupported, "no file")]
)
def test_nothing_there(given, error, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=says):
        Texts(given or ([] if given == [] else "nowhere2"))


def test_a_folder_without_text_and_a_file_without_any(write, tmp_path):
    path = write("folder/a.py", "x = 1\n")
    with pytest.raises(BadFile, match=r"\.txt"):
        Texts(tmp_path / "folder")
    assert documents(Texts(tmp_path / "folder", suffixes=(".py",), **WHOLE)) == ["x = 1\n"]
    assert documents(Texts(path, **WHOLE)) == ["x = 1\n"]
    with pytest.raises(BadFile, match="no text"):
        list(Texts(write("b.txt", "\n \n")).pieces())


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"one\ntw\xffo\nthree\n", r"a\.txt, line 2: not UTF-8 \(byte 3 is 0xff\)"),
        ("a.txt", b"one\nt\0wo\nthree\n", r"a\.txt, line 2: NUL byte"),
        ("a.txt", b"one\n" + b"x" * 101 + b"\nthree\n", r"a\.txt, line 2: line too long"),
        ("a.jsonl", b'{"text": "one"}\n{"text\n{"text": "three"}\n', r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", b'{"text": "one"}\n{"txt": "two"}\n{"text": "three"}\n', r"line 2: no text in field 'text' \(found 'txt'\)"),
        ("a.jsonl", b'{"text": "one"}\n{"text": 7}\n{"text": "three"}\n', r"line 2: no text in field"),
        ("a.jsonl", b'{"text": "one"}\n{"text": "a\\u0000"}\n{"text": "three"}\n', r"line 2: NUL byte"),
        ("a.jsonl", b'{"text": "one"}\n{"text": "a\\ud800"}\n{"text": "three"}\n', r"line 2: half a surrogate"),
    ],
)
def test_bad_lines_stop_or_are_left_out(write, name, content, says):
    path = write(name, content)
    with pytest.raises(BadFile, match=says + r".*--on-error skip"):
        list(Texts(path, longest=100, **WHOLE).pieces())
    kept = Texts(path, longest=100, on_error="skip", **WHOLE)
    assert "".join(documents(kept)).split() in (["one", "three"], ["onethree"])
    assert len(kept.skipped) == 1 and "lines skipped: 1 " in str(kept.skipped)
    with pytest.raises(NotSupported, match="on_error='other'"):
        Texts(path, on_error="other")


def test_a_broken_archive(write, tmp_path):
    path = write("a.txt.gz", "some text\n" * 1000)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadFile, match="damaged or cut short"):
        list(Texts(path).pieces())


# -- parts -----------------------------------------------------------------------------------------------------------------


def test_documents_go_whole_into_one_part_and_copies_into_the_same(write):
    twice = [*DOCUMENTS, *DOCUMENTS[::2]]
    path = write("a.jsonl", "".join(json.dumps({"text": d}) + "\n" for d in twice))
    texts = Texts(path, shares=(0.2, 0.1))
    parts = {part: documents(texts, part) for part in ("train", "valid", "test")}
    assert Counter(d for part in parts.values() for d in part) == Counter(twice)
    assert not set(parts["train"]) & (set(parts["valid"]) | set(parts["test"]))
    assert parts["valid"] and parts["test"] and len(parts["train"]) > len(twice) / 2
    more = Texts(write("b.jsonl", "".join(json.dumps({"text": d}) + "\n" for d in [*twice, "one more"])), shares=(0.2, 0.1))
    assert documents(more, "test")[: len(parts["test"])] == parts["test"]  # the others stay where they were


def test_one_document_is_cut_by_place(write):
    body = "".join(f"line {n}\n" for n in range(1000))
    texts = Texts(write("a.txt", body), shares=(0.1, 0.05))
    train, valid, test = ("".join(p.text for p in texts.pieces() if p.part == part) for part in ("train", "valid", "test"))
    assert train + valid + test == body
    assert len(train) == int(len(body) * (1 - 0.1 - 0.05)) and abs(len(test) - len(body) * 0.05) <= 1
    marks = [(p.part, p.begins, p.ends) for p in texts.pieces()]
    assert marks == [("train", True, False), ("valid", True, False), ("test", True, True)]


def test_parts_of_their_own(write):
    names = [write(f"{n}.txt", DOCUMENTS[n]) for n in range(3)]
    texts = Texts(names[0], valid=names[1], test=names[2])
    assert [documents(texts, part) for part in ("train", "valid", "test")] == [[d] for d in DOCUMENTS[:3]]
    with pytest.raises(NotSupported, match="shares"):
        Texts(names[0], shares=(0.6, 0.6))


# -- pieces and tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "word"])
def test_pieces_become_the_tokens_of_the_whole(write, tmp_path, monkeypatch, kind):
    """Also where blank lines, indents and spaces at line ends stand at the border of a piece."""
    body = "".join(f"word {n},  more\n{'  x ' * (n % 3)}\n{'' if n % 5 else chr(10)}a{n} (b).\n" for n in range(400))
    path = write("a.txt", body)
    monkeypatch.setattr(text, "PIECE", 100)
    texts = Texts(path, **WHOLE)
    assert len(list(texts.pieces())) > 20
    tokenizer = Tokenizer.train(texts.train(), kind, 300, min_count=1)
    found = tokenize_texts(texts, tokenizer, tmp_path / "cache").train
    assert found.ids.tolist() == [BOS, *tokenizer.encode(body), EOS] == TokenizedText.of([body], tokenizer).ids.tolist()
    assert found.ids.dtype == np.uint16 and found.bytes == len(body.encode()) and found.starts.tolist() == [0]


def test_documents_end_to_end(write, tmp_path):
    path = write("a.jsonl", "".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS))
    texts = Texts(path, shares=(0.2, 0.1))
    tokenizer = Tokenizer.train(texts.train(), "char", 100, min_count=1)
    found = tokenize_texts(texts, tokenizer, tmp_path / "cache")
    for part in ("train", "valid", "test"):
        tokens: TokenizedText = getattr(found, part)
        whole = documents(texts, part)
        rows = [tokens.ids[a:b].tolist() for a, b in zip(tokens.starts, tokens.ends, strict=True)]
        assert rows == [[BOS, *tokenizer.encode(d), EOS] for d in whole]
        assert tokens.bytes == sum(len(d.encode()) for d in whole) and tokens.documents == len(whole)
        assert tokens.unknown == sum(row.count(UNK) for row in rows)


def test_the_cache_is_kept_until_something_changes(write, tmp_path, monkeypatch):
    path, folder = write("a.txt", "".join(DOCUMENTS)), tmp_path / "cache"
    tokenizer = Tokenizer.train(DOCUMENTS, "bpe", 300)
    made = []
    real = Tokenizer.encode_all
    monkeypatch.setattr(Tokenizer, "encode_all", lambda self, *a, **k: (made.append(1), real(self, *a, **k))[1])

    def ask(**options):
        made.clear()
        found = tokenize_texts(Texts(path, **options), tokenizer, folder)
        return bool(made), found

    assert ask()[0] and not ask()[0]
    with monkeypatch.context() as patched:
        patched.setattr(Texts, "_read", None)  # not even read again
        ask()
    os.utime(path, (1, 1))
    assert not ask()[0]  # other times, the same text
    assert ask(shares=(0.3, 0.3))[0]
    path.write_text("other text\n" * 50)
    again, found = ask()
    assert again and tokenizer.decode(found.train.ids).startswith("other text\n")
    tokenizer = Tokenizer.train(DOCUMENTS, "bpe", 310)
    assert ask()[0]
    for ids in folder.glob("*/train.ids"):
        ids.write_bytes(ids.read_bytes()[:-2])  # a disk that lost something
    assert ask()[0] and not ask()[0]
    for ids in folder.glob("*/train.ids"):
        raw = bytearray(ids.read_bytes())
        raw[7] ^= 1  # a bit that fell over
        ids.write_bytes(raw)
    assert ask()[0] and not ask()[0]
    assert not list(folder.glob("writing*"))


def test_short_texts_are_read_once_and_long_ones_twice(write, tmp_path, monkeypatch):
    path, readings = write("a.jsonl", "".join(json.dumps({"text": d}) + "\n" for d in DOCUMENTS * 5)), []
    real, tokenizer = Texts._read, Tokenizer.train(DOCUMENTS, "char", 100)
    monkeypatch.setattr(Texts, "_read", lambda self, part, skipped: (readings.append(part), real(self, part, skipped))[1])
    found = []
    for name, at_once in (("short", text.SAMPLE), ("long", 1000)):
        readings.clear()
        monkeypatch.setattr(text, "SAMPLE", at_once)
        texts = Texts(path)
        kept = list(texts.sample())
        found.append(tokenize_texts(texts, tokenizer, tmp_path / name))
        assert readings == ["train"] * (1 if name == "short" else 2)
        assert set(kept) <= set(documents(Texts(path), "train")) and (sum(map(len, kept)) <= 1000) == (name == "long")
    assert found[0].digest == found[1].digest and np.array_equal(found[0].valid.ids, found[1].valid.ids)


def test_with_a_cache_a_later_run_reads_nothing(write, tmp_path, monkeypatch):
    path, folder = write("a.txt", "".join(DOCUMENTS)), tmp_path / "cache"

    def ask(**options):
        texts = Texts(path, **options)
        tokenizer = train_tokenizer(texts, folder, "bpe", 300, 2, False)
        return count_characters(texts, folder), tokenizer, tokenize_texts(texts, tokenizer, folder).digest

    first = ask()
    with monkeypatch.context() as patched:
        patched.setattr(Texts, "_read", None)
        assert ask() == first
    assert ask(shares=(0.3, 0.3))[1] != first[1]  # another training part
    path.write_text("other text\n" * 50)
    assert ask()[0] == 550 and ask()[1] != first[1]
    assert count_characters(Texts(path), None) == 550


def test_validation_is_not_taken_for_test(write, tmp_path):
    """The same two files, the second as another part, in one cache."""
    a, b, tokenizer = write("a.txt", "one"), write("b.txt", "two"), Tokenizer.train([], "byte", 260)
    for named in ("valid", "test"):
        found = tokenize_texts(Texts(a, **{named: b}, shares=(0.0, 0.0)), tokenizer, tmp_path / "cache")
        assert [getattr(found, part).documents for part in ("valid", "test")] == [named == "valid", named == "test"]


def test_what_a_killed_process_left_is_neither_read_nor_kept(write, tmp_path):
    path, tokenizer, folder = write("a.txt", "one"), Tokenizer.train([], "byte", 260), tmp_path / "cache"
    tokenize_texts(Texts(path), tokenizer, folder)
    (made,) = (one for one in folder.iterdir() if one.is_dir())
    made.rename(folder / "writing-1")  # killed before the last step
    tokenize_texts(Texts(path), tokenizer, folder)
    assert [one.name for one in folder.iterdir() if one.is_dir()] == [made.name]


def test_what_a_killed_process_had_tokenized_is_not_tokenized_again(write, tmp_path, monkeypatch):
    path, tokenizer = write("a.txt", "".join(f"document {n}\n\n" for n in range(60))), Tokenizer.train(DOCUMENTS, "bpe", 300)
    monkeypatch.setattr("regard.data.cache.AT_ONCE", 100)
    monkeypatch.setattr("regard.data.cache.SAVE", 200)
    whole = tokenize_texts(Texts(path, separator=""), tokenizer, tmp_path / "whole")
    real, asked = Tokenizer.encode_all, []

    def encode(self, texts, *rest):
        asked.extend(texts)
        if len(asked) > 40 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            raise KeyboardInterrupt
        return real(self, texts, *rest)

    monkeypatch.setattr(Tokenizer, "encode_all", encode)
    with pytest.raises(KeyboardInterrupt):
        tokenize_texts(Texts(path, separator=""), tokenizer, tmp_path / "cache")
    before = len(asked)
    again = tokenize_texts(Texts(path, separator=""), tokenizer, tmp_path / "cache")
    assert len(asked) - before < 40
    for part in ("train", "valid", "test"):
        one, two = getattr(whole, part), getattr(again, part)
        assert one.ids.tolist() == two.ids.tolist() and one.starts.tolist() == two.starts.tolist() and one.bytes == two.bytes


def test_a_long_pass_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr("regard.data.pace.EVERY", 0.0)
    pace = Pace("tokenizing", 10_000_000)
    pace.add(4_000_000)
    assert re.fullmatch(r"tokenizing: 4 of 10 MB, [\d.]+ MB/s, [\d,]+ s left\n", capsys.readouterr().err)
    monkeypatch.setenv("RANK", "1")
    Pace("tokenizing").add(1)
    assert capsys.readouterr().err == ""


def test_several_processes_ask_at_once(write, tmp_path):
    path = write("a.txt", "".join(DOCUMENTS) * 20)
    script = f"""
from regard.data import Texts, Tokenizer, tokenize_texts
found = tokenize_texts(Texts({str(path)!r}), Tokenizer.train(["x"], "byte", 300), {str(tmp_path / "cache")!r})
print(found.train.ids.sum(), found.digest)
"""
    workers = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {worker.communicate(timeout=300)[0] for worker in workers}
    assert len(said) == 1 and len(said.pop().split()) == 2 and all(worker.returncode == 0 for worker in workers)
    assert len(list((tmp_path / "cache").glob("*/manifest.json"))) == 1 and not list((tmp_path / "cache").glob("writing*"))


def test_a_place_that_cannot_be_written(write, tmp_path):
    path = write("a.txt", "text\n")
    with pytest.raises(CannotSave, match="choose another folder"):
        tokenize_texts(Texts(path), Tokenizer.train(["text"], "byte", 300), path / "cache")


def test_memory_stays_small(write, tmp_path, monkeypatch):
    """Nine megabytes of text in a few megabytes of memory, besides the sample that is kept for the tokenizer."""
    monkeypatch.setattr(text, "SAMPLE", 1 << 20)
    path = write("a.txt", "All work and no play makes Jack a dull boy.\n" * 200_000)
    tokenizer = Tokenizer.train(["x"], "byte", 300)
    monkeypatch.setattr("regard.data.cache.AT_ONCE", 1 << 18)
    monkeypatch.setattr(Tokenizer, "encode_all", lambda self, texts: [list(t.encode()[:1000]) for t in texts])  # quick
    tracemalloc.start()
    found = tokenize_texts(Texts(path), tokenizer, tmp_path / "cache")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.train.bytes > 7_500_000 and peak < 4_000_000


def test_shares_are_of_the_text_not_of_the_number_of_documents():
    draw = np.random.default_rng(0)
    for _ in range(50):
        amount, place = (draw.pareto(1.2, 200) * 100 + 1).astype(int), draw.random(200)
        place[:20] = place[20:40]  # copies
        chosen = choose_amounts(place, amount, (0.05, 0.1))
        for number, share in ((1, 0.05), (2, 0.1)):
            assert 0 < amount[chosen == number].sum() <= share * amount.sum()
            if amount.max() < 0.02 * amount.sum():
                assert amount[chosen == number].sum() > share * amount.sum() / 2
        assert (chosen[:20] == chosen[20:40]).all()
    texts = Texts("python-docs")
    amounts = Counter[str]()
    for piece in texts.pieces():
        amounts[piece.part] += len(piece.text)
    assert all(0.025 < amounts[part] / sum(amounts.values()) <= 0.05 for part in ("valid", "test"))
