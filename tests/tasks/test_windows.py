"""Windows of long passages, targets by characters, and the search for the best span."""

import itertools

import numpy as np
import pytest
import torch

from regard.data import Tokenizer, Tokenizers
from regard.data.questions import Question, Span
from regard.errors import BadConfig
from regard.models import Reader, Reading
from regard.models.reader import NEVER, answer_positions
from regard.tasks import QuestionAnswering, QuestionAnsweringOptions, TextProcessor, measure
from regard.tasks.span_encoding import Answers, best_spans, collate, encode_questions, expressible, window_starts

TEXT = "In 1854–1855 Zoë’s 👩‍🚀 crew sang an e\u0301tude in I\u0307stanbul; then 東京 and 🇫🇷 too."


def question(answer: str, context: str = TEXT) -> Question:
    return Question("1", "what?", context, (Span(answer, context.index(answer)),) if answer else ())


# -- the best span -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("L", "longest"), [(1, 1), (7, 1), (7, 3), (9, 9), (9, 40)])
def test_best_spans_against_all_pairs(L, longest):
    torch.manual_seed(L * longest)
    start_BL, end_BL = torch.randn(5, L).log_softmax(1), torch.randn(5, L).log_softmax(1)
    start_BL[0, : L // 2] = -torch.inf
    found = best_spans(start_BL, end_BL, longest, 4)
    for row in range(5):
        pairs = [(float(start_BL[row, i] + end_BL[row, j]), i, j) for i in range(L) for j in range(i, min(i + longest, L))]
        pairs.sort(reverse=True)
        for k, (score, i, j) in enumerate(pairs[: found.log_p_BK.shape[1]]):
            if score > -np.inf:
                assert float(found.log_p_BK[row, k]) == pytest.approx(score)
                assert (int(found.first_BK[row, k]), int(found.last_BK[row, k])) == (i, j)


def test_the_best_of_each_end_may_be_no_span():
    """The most likely start comes after the most likely end: taken one by one they give nothing, together the best span."""
    start_BL, end_BL = torch.tensor([[0.1, 0.3, 0.6]]).log(), torch.tensor([[0.5, 0.4, 0.1]]).log()
    found = best_spans(start_BL, end_BL, 3)
    assert start_BL.argmax() > end_BL.argmax() and (int(found.first_BK), int(found.last_BK)) == (1, 1)


def test_no_answer_by_threshold():
    from regard.tasks.span_encoding import Answer

    found = Answers([Answer("x", 0, 1, -2.0)], no_answer=-1.5)
    assert found.margin == 0.5 and found.with_threshold(0.6).best is not None and found.with_threshold(0.4).best is None
    sure = Answers([Answer("x", 0, 1, -200.0)], no_answer=0.0)
    assert sure.with_threshold(99.0).text == "" and sure.text == "x" and Answers([], 0.0, NEVER).best is None


# -- tokens and characters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char", "byte"])
def test_offsets_are_characters_of_the_text(kind, lowercase):
    tokenizer = Tokenizer.train([TEXT, "the crew sang"] * 3, kind, 500, lowercase=lowercase)
    ids, spans = tokenizer.encode_with_offsets(TEXT)
    assert ids == tokenizer.encode(TEXT) and len(ids) == len(spans)
    covered = {at for first, end in spans for at in range(first, end)}
    assert covered == {at for at, character in enumerate(TEXT) if not character.isspace()}
    assert [first for first, end in spans if end > first] == sorted(first for first, end in spans if end > first)
    for answer in ("1854–1855", "👩‍🚀", "e\u0301tude", "I\u0307stanbul", "東京", "🇫🇷", "Zoë’s"):
        one = question(answer)
        assert expressible([one], tokenizer) == [answer], answer


def test_offsets_of_wordpiece():
    transformers = pytest.importorskip("transformers", reason="the oracle")
    from tokenizers import Tokenizer as Native
    from tokenizers import models, normalizers, pre_tokenizers

    from regard.data import HFTokenizer

    vocabulary = {
        piece: n for n, piece in enumerate(["[UNK]", "[CLS]", "[SEP]", "zoe", "sang", "an", "et", "##ude", ".", "in", "2", "##0"])
    }
    native = Native(models.WordPiece(vocabulary, unk_token="[UNK]"))
    native.normalizer, native.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    text = "Zoë sang an\te\u0301tude in 20."
    ids, spans = HFTokenizer(native, {"cls": 1, "sep": 2}).encode_with_offsets(text)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=native)(text, add_special_tokens=False, return_offsets_mapping=True)
    assert ids == theirs["input_ids"] and spans == theirs["offset_mapping"]
    assert [text[first:end] for first, end in spans] == ["Zoë", "sang", "an", "e\u0301t", "ude", "in", "2", "0", "."]


def test_an_answer_inside_a_token_is_widened():
    one = question("ell", "hello world")
    tokenizer = Tokenizer.train(["hello world"] * 3, "word", 50)
    assert expressible([one], tokenizer) == ["hello"]


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 1, 5, 6, 7, 23])
@pytest.mark.parametrize("stride", [1, 3, 5, 9])
def test_windows_cover_everything(tokens, stride):
    room = 5
    starts = window_starts(tokens, room, stride)
    assert set(range(tokens)) <= {at for first in starts for at in range(first, first + room)}
    assert starts[0] == 0 and all(b - a == min(stride, room) for a, b in itertools.pairwise(starts))
    assert len(starts) == 1 or starts[-2] + room < tokens  # none more than needed


class Oracle(Reader):
    """Knows the token that begins and ends every answer, and says "no answer" where it is not."""

    def __init__(self, token: int):
        super().__init__()
        self.token = token
        self._add_threshold()

    @property
    def max_length(self):
        return 40

    def steps(self, ids_BL, n_B, segment_BL):
        possible_BL = answer_positions(n_B, segment_BL)
        scores_BL = 20.0 * ((ids_BL == self.token) & possible_BL)
        scores_BL[:, 0] = 10.0
        log_p_BL = scores_BL.masked_fill(~possible_BL, -torch.inf).log_softmax(1)[None]
        return Reading(log_p_BL, log_p_BL)


def test_an_answer_beyond_the_first_window_is_found():
    context = " ".join(f"w{n}" for n in range(300)) + " treasure " + " ".join(f"v{n}" for n in range(50))
    tokenizer = Tokenizer.train([context], "word", 1000, min_count=1)
    one = question("treasure", context)
    windows = encode_questions([one], tokenizer, 40, 20)
    assert len(windows) > 10 and (windows.start_W > 0).sum() == 2  # strides overlap: two windows hold it, the others have target 0
    token = tokenizer.encode("treasure")[0]
    for row in np.flatnonzero(windows.start_W > 0):
        assert windows.ids[row][windows.start_W[row]] == token == windows.ids[row][windows.end_W[row]]
    options = QuestionAnsweringOptions(data="", max_length=40, stride=20, max_answer=5)
    task = QuestionAnswering(options, TextProcessor(Tokenizers(tokenizer)))
    task.nbest = 3
    sums, (found,) = measure(task, Oracle(token).eval(), [one])
    loss = sums["loss"] / sums["count"]
    assert found.spans[0][:3] == ("treasure", context.index("treasure"), context.index("treasure") + 8)
    assert found.margin < -15 and loss < 0.1 and len({span[1:3] for span in found.spans}) == len(found.spans)
    first_only = encode_questions([one], tokenizer, 400, 400)
    assert len(first_only) == 1


def test_rows_have_question_and_passage():
    tokenizer = Tokenizer.train(["what? a b c d e f"], "word", 50, min_count=1)
    one = question("e f", "a b c d e f")
    windows = encode_questions([one, question("", "a b c")], tokenizer, 9, 2)
    batch = collate(windows, np.arange(len(windows)))
    assert tokenizer.strings(windows.ids[0]) == ["⟨bos⟩", "what", "?", "⟨eos⟩", "a", "b", "c", "d", "⟨eos⟩"]
    assert batch.segment_BL[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert answer_positions(batch.n_B, batch.segment_BL)[0].tolist() == [True, False, False, False, True, True, True, True, False]
    assert batch.start_B.tolist() == [0, 6, 0] and batch.end_B.tolist() == [0, 7, 0]
    assert batch.n_B.tolist() == [9, 9, 8] and windows.question_W.tolist() == [0, 0, 1]
    with pytest.raises(BadConfig, match="leaves no token"):
        encode_questions([question("a", "a b c")._replace(text="what " * 40)], tokenizer, 4, 1)
