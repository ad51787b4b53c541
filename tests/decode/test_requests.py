"""Stop strings across token boundaries, against a slow reference that reads one character at a time; detokenization."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decode import GenerationOptions
from regard.decode.requests import BROKEN, Detokenizer, StopFilter
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
    stream, arrived, shown = StopFilter(stops), "", ""
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
    stream = StopFilter(("\n\n",))
    assert [stream.push(piece) for piece in ("apple\n", "pear", "\n", "\nplum", "more")] == ["apple", "\npear", "", "", ""]
    assert (stream.text, stream.stop, stream.close()) == ("apple\npear", "\n\n", "")


def test_one_letter():
    stream = StopFilter((")",))
    assert [stream.push(piece) for piece in ("f(", "x", ")\n", "y")] == ["f(", "x", "", ""]
    assert stream.stop == ")"


def test_the_first_to_be_complete_counts():
    stream = StopFilter(("abc", "b"))
    assert stream.push("xabc") == "xa" and stream.stop == "b"
    stream = StopFilter(("b", "ab"))
    assert stream.push("xab") == "x" and stream.stop == "ab"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(NotSupported, match="empty stop string"):
        GenerationOptions(stop=("a", ""))
    with pytest.raises(NotSupported, match=r"write stop=\('ab',\)"):
        GenerationOptions(stop="ab")


def test_characters_of_several_tokens_come_whole():
    def decode(ids):
        return bytes(ids).decode(errors="replace")

    pieces = Detokenizer(decode)
    assert [pieces.push(byte) for byte in "aé€b".encode()] == ["a", "", "é", "", "", "€", "b"]
    assert (pieces.push("€".encode()[0]), pieces.close(), pieces.close()) == ("", BROKEN, "")


def test_the_first_token_of_a_text_is_not_special_in_the_middle():
    def decode(ids):  # as word-piece decoders do: a space before every token but the first
        return " ".join("abcd"[i] for i in ids)

    pieces = Detokenizer(decode)
    assert [pieces.push(token) for token in (0, 1, 1, 3)] == ["a", " b", " b", " d"]


def test_bytes_that_are_no_text_are_not_waited_for():
    longest = 0

    def decode(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return bytes(ids).decode(errors="replace")

    pieces, ids = Detokenizer(decode), [0xFF] * 500 + list("é€".encode())
    shown = [pieces.push(byte) for byte in ids]
    assert "".join(shown) == bytes(ids).decode(errors="replace") and longest < 100  # or a long prompt of them would take minutes


@pytest.mark.parametrize("size", [3, 4, 5])
def test_tokens_that_end_inside_characters(size):
    """Of three bytes, all of them do: no token but the last ends where a character does."""
    raw = ("x" + "€" * 200).encode()
    tokens = [raw[at : at + size] for at in range(0, len(raw), size)]
    pieces = Detokenizer(lambda ids: b"".join(tokens[i] for i in ids).decode(errors="replace"))
    assert "".join(pieces.push(i) for i in range(len(tokens))) + pieces.close() == raw.decode()


def test_tokens_without_text_are_not_kept_for_ever():
    longest = 0

    def decode(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return "".join("a" for i in ids if i)

    pieces = Detokenizer(decode)
    assert "".join(pieces.push(i) for i in [1] + [0] * 300 + [1]) == "aa" and longest < 100
