"""Stop strings across token borders, against a slow reference that reads one character at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decode import Sampling, Stops, Stream, Tokens, Watcher, sample
from regard.decode.stops import BROKEN, Pieces
from regard.errors import NotSupported

LETTERS = "ab\n"
STRINGS = st.text(LETTERS, min_size=1, max_size=4)


def slow(text, stops):
    """Read until some stop string is complete; cut where the longest of those begins."""
    for n in range(len(text) + 1):
        ended = [stop for stop in stops if text[:n].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: n - len(longest)], longest
    return text, None


@given(st.lists(st.text(LETTERS, max_size=5), max_size=12), st.lists(STRINGS, max_size=4))
@settings(max_examples=400, deadline=None)
def test_pieces_do_not_matter(pieces, stops):
    whole = "".join(pieces)
    expected, stop = slow(whole, stops)
    stream, arrived, shown = Stream(Stops(tuple(stops))), "", ""
    for piece in pieces:
        shown += stream.push(piece)
        arrived += piece
        assert expected.startswith(shown)  # nothing is shown that must be taken back
        # and nothing is held without need: some stop string could still begin right after what is shown
        held = arrived[len(shown) :]
        assert stream.stop is not None or not held or any(s.startswith(held) and len(s) > len(held) for s in stops)
    shown += stream.close()
    assert (shown, stream.text, stream.stop) == (expected, expected, stop)


def test_by_hand():
    stream = Stream(Stops(("\n\n",)))
    assert [stream.push(piece) for piece in ("apple\n", "pear", "\n", "\nplum", "more")] == ["apple", "\npear", "", "", ""]
    assert (stream.text, stream.stop, stream.close()) == ("apple\npear", "\n\n", "")


def test_one_letter():
    stream = Stream(Stops((")",)))
    assert [stream.push(piece) for piece in ("f(", "x", ")\n", "y")] == ["f(", "x", "", ""]
    assert stream.stop == ")"


def test_the_first_to_be_complete_counts():
    stream = Stream(Stops(("abc", "b")))
    assert stream.push("xabc") == "xa" and stream.stop == "b"
    stream = Stream(Stops(("b", "ab")))
    assert stream.push("xab") == "x" and stream.stop == "ab"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(NotSupported, match="empty stop string"):
        Stops(("a", ""))
    with pytest.raises(NotSupported, match=r"write Stops\(\('ab',\)\)"):
        Stops("ab")


def test_characters_of_several_tokens_come_whole():
    def decode(ids):
        return bytes(ids).decode(errors="replace")

    pieces = Pieces(decode)
    assert [pieces.push(byte) for byte in "aé€b".encode()] == ["a", "", "é", "", "", "€", "b"]
    assert (pieces.push("€".encode()[0]), pieces.close(), pieces.close()) == ("", BROKEN, "")


def test_the_first_token_of_a_text_is_not_special_in_the_middle():
    def decode(ids):  # as word-piece decoders do: a space before every token but the first
        return " ".join("abcd"[i] for i in ids)

    pieces = Pieces(decode)
    assert [pieces.push(token) for token in (0, 1, 1, 3)] == ["a", " b", " b", " d"]


class Script:
    """A model that says what it was told to, row by row."""

    def __init__(self, rows):
        self.rows, self.sizes = rows, []

    def begin(self):
        return State(list(range(len(self.rows))))

    def step(self, token_B, state, want_weights=False):
        self.sizes.append(len(token_B))
        logits_BN = torch.full((len(token_B), 128), -torch.inf)
        for b, row in enumerate(state.rows):
            logits_BN[b, ord(self.rows[row][state.at])] = 0.0
        state.at += 1
        return Step(logits_BN)


class State:
    def __init__(self, rows):
        self.rows, self.at = rows, 0

    def reorder(self, rows):
        self.rows = [self.rows[b] for b in rows.tolist()]
        return self


class Step:
    def __init__(self, logits_BN):
        self.logits_BN, self.weights_BM = logits_BN, None


def test_every_row_stops_by_itself():
    model = Script(["one.$", "two STOP three", "STO.$", "four fiv", "STOP...."])
    streamed = {}
    watcher = Watcher(Stops(("STOP",)), lambda ids: "".join(map(chr, ids)), 5, lambda row, text: streamed.setdefault(row, []).append(text))
    options = Sampling(most=8)
    n = torch.ones(5, dtype=torch.long)
    answers = sample(model, model.begin(), options, source_n_B=n, tokens=Tokens(end=ord("$"), never=()), watch=watcher)
    assert watcher.texts() == ["one.", "two ", "STO.", "four fiv", ""]
    assert [answer.finished for answer in answers] == [True, True, True, False, True]
    assert [stream.stop for stream in watcher.streams] == [None, "STOP", None, None, "STOP"]
    assert model.sizes == [5, 5, 5, 5, 4, 2, 2, 2]
    assert {row: "".join(texts) for row, texts in streamed.items()} == {0: "one.", 1: "two ", 2: "STO.", 3: "four fiv"}
    assert streamed[2] == ["STO."]  # held until it could not be STOP any more


def test_bytes_that_are_no_text_are_not_waited_for():
    longest = 0

    def decode(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return bytes(ids).decode(errors="replace")

    pieces, ids = Pieces(decode), [0xFF] * 500 + list("é€".encode())
    shown = [pieces.push(byte) for byte in ids]
    assert "".join(shown) == bytes(ids).decode(errors="replace") and longest < 100  # or a long prompt of them would take minutes


@pytest.mark.parametrize("size", [3, 4, 5])
def test_tokens_that_end_inside_characters(size):
    """Of three bytes, all of them do: no token but the last ends where a character does."""
    raw = ("x" + "€" * 200).encode()
    tokens = [raw[at : at + size] for at in range(0, len(raw), size)]
    pieces = Pieces(lambda ids: b"".join(tokens[i] for i in ids).decode(errors="replace"))
    assert "".join(pieces.push(i) for i in range(len(tokens))) + pieces.close() == raw.decode()


def test_tokens_without_text_are_not_kept_for_ever():
    longest = 0

    def decode(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return "".join("a" for i in ids if i)

    pieces = Pieces(decode)
    assert "".join(pieces.push(i) for i in [1] + [0] * 300 + [1]) == "aa" and longest < 100
