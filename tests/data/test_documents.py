"""Documents in a folder per class: which files count, which label they have, and what is wrong with one."""

import os

import pytest

from regard.data.examples import Labelled, read_labelled
from regard.errors import BadFile, MissingFile, NotSupported

ALL = {"shares": (0.0, 0.0)}


@pytest.fixture
def folder(tmp_path):
    """Writes files by their names."""

    def write(**contents):
        for name, content in contents.items():
            path = tmp_path / "docs" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path = path.with_suffix(".txt")
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / "docs"

    return write


def test_a_folder_per_class(folder):
    docs = folder(pos__a="Good.\n\n  Very  good. ", neg__b="Bad.", neg__more__c="\ufeffWorse.")
    (docs / "pos" / "notes.html").write_text("not a document")
    (docs / "pos" / "9").write_text("Without a suffix.")
    (docs / "README.txt").write_text("about")
    assert read_labelled(docs, **ALL).train == [
        Labelled(("Bad.",), "neg"),
        Labelled(("Worse.",), "neg"),
        Labelled(("Without a suffix.",), "pos"),
        Labelled(("Good.\nVery good.",), "pos"),
    ]


def test_parts(folder):
    docs = folder(train__pos__a="a", train__neg__b="b", train__neg__c="c", train__unsup__u="no label", test__pos__d="d", test__neg__e="e")
    found = read_labelled(docs, shares=(0.4, 0.4))
    assert sorted(one.label for one in found.test) == ["neg", "pos"] and len(found.train) + len(found.valid) == 3 and found.valid
    assert found.skipped.counts == {"folder of texts without labels": 1}  # never an error
    assert len(read_labelled(docs, **ALL).train) == 5  # all of it, as for `evaluate --data`
    assert len(read_labelled(docs / "test", **ALL).train) == 2
    own = read_labelled(docs, test=docs / "train")
    assert len(own.test) == 3


def test_held_out_by_content(folder):
    docs = folder(**{f"{'pos' if n % 2 else 'neg'}__{n}": f"text {n % 25}" for n in range(50)})
    found = read_labelled(docs, shares=(0.2, 0.2))
    texts = [{one.texts for one in part} for part in (found.train, found.valid, found.test)]
    assert all(texts) and not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "bad.txt: empty document"),
        (b" \n\t\n", "bad.txt: empty document"),
        (b"caf\xe9", "bad.txt: not UTF-8"),
        ("utf-16".encode("utf-16"), "bad.txt: NUL byte"),
        (b"a" * ((1 << 20) + 1), "bad.txt: cannot be read .1,048,577 bytes; expected at most 1,048,576"),
    ],
)
def test_bad_files(folder, content, says):
    docs = folder(pos__a="a", neg__b="b", neg__bad=content)
    with pytest.raises(BadFile, match=says):
        read_labelled(docs, **ALL)
    found = read_labelled(docs, on_error="skip", **ALL)
    assert len(found.train) == 2 and len(found.skipped) == 1


def test_what_is_not_a_file(folder):
    docs = folder(pos__a="a", neg__b="b")
    os.mkfifo(docs / "neg" / "pipe.txt")
    (docs / "neg" / "device.txt").symlink_to("/dev/zero")
    (docs / "neg" / "gone.txt").symlink_to("nowhere")
    (docs / "neg" / "loop").symlink_to(docs)  # not followed
    (docs / "neg" / "linked.txt").symlink_to(docs / "pos" / "a.txt")
    with pytest.raises(BadFile, match="cannot be read"):
        read_labelled(docs, **ALL)
    found = read_labelled(docs, on_error="skip", **ALL)
    assert [one.label for one in found.train] == ["neg", "neg", "pos"] and found.skipped.counts == {"cannot be read": 3}


def test_mistakes(folder, tmp_path):
    docs = folder(pos__a="a")
    with pytest.raises(NotSupported, match="omit --fields"):
        read_labelled(docs, fields=("1", "2"), **ALL)
    with pytest.raises(BadFile, match="no folders in it"):
        read_labelled(docs / "pos", **ALL)
    (docs / "neg").mkdir()
    with pytest.raises(BadFile, match="neg: class without documents"):
        read_labelled(docs, **ALL)
    with pytest.raises(MissingFile):
        read_labelled(tmp_path / "none", **ALL)
