"""Prompts in, text out: the same whole and in pieces, in batches and alone; the command too."""

import json

import pytest
import torch
from small_lm import Small

from regard.cli import main
from regard.data import Tokenizers
from regard.decode import Options, Sampling, complete, few_shot, stream
from regard.decode.complete import Text
from regard.errors import NotSupported
from regard.models import build, config_of
from regard.tasks.run import write_config
from regard.train.weights import weights_of

DRAWN = Sampling(temperature=0.9, seed=3)


def test_whole_and_in_pieces(tokenizer):
    model, prompts = Small(), ["one", "", "three and more", [7, 8, 9]]
    options = Options(most=20, sampling=DRAWN, n=3, alternatives=2, stops=("e", "x y"))
    found, text, ends = complete(model, tokenizer, prompts, options), {}, {}
    for piece in stream(model, tokenizer, prompts, options, rows=5):
        text[piece.prompt, piece.choice] = text.get((piece.prompt, piece.choice), "") + piece.text
        ends[piece.prompt, piece.choice] = piece.finish
    for p, answers in enumerate(found):
        assert len(answers) == 3
        for c, answer in enumerate(answers):
            assert (answer.text, answer.finish) == (text[p, c], ends[p, c])
            assert not any(stop in answer.text for stop in options.stops)
        assert [answer.text for answer in complete(model, tokenizer, prompts[p], options)[0]] == [answer.text for answer in answers]
    assert len({answer.text for answer in found[0]}) > 1


def test_best_of_is_the_best(tokenizer):
    all_, best = (
        complete(Small(), tokenizer, "abc", Options(most=8, sampling=DRAWN, **more))[0] for more in ({"n": 6}, {"n": 2, "best_of": 6})
    )
    ranked = sorted(all_, key=lambda answer: -answer.log_prob / len(answer.ids))
    assert [answer.text for answer in best] == [answer.text for answer in ranked[:2]]
    with pytest.raises(NotSupported, match="best_of"):
        next(stream(Small(), tokenizer, "abc", Options(best_of=2)))
    with pytest.raises(NotSupported, match="best_of"):
        Options(n=3, best_of=2)


def test_more_prompts_than_may_wait(tokenizer):
    prompts = [f"prompt {n}" for n in range(40)]
    found = complete(Small(), tokenizer, prompts, Options(most=5), waiting=3, rows=4)
    assert [answers[0].text for answers in found] == [
        complete(Small(), tokenizer, prompt, Options(most=5))[0][0].text for prompt in prompts
    ]


def test_a_training_model_answers_and_trains_on(tokenizer):
    model = build("gpt2", {"vocab": 260, "length": 32, "width": 16, "heads": 2, "depth": 1, "dropout": 0.5}).train()
    one, two = (complete(model, tokenizer, "abc", Options(most=9))[0][0].ids for _ in range(2))
    assert one == two and model.training and model.blocks[0].training


def test_echo_hides_how_documents_begin(tokenizer):
    (answer,) = complete(Small(), tokenizer, "héllo", Options(most=3, echo=True, alternatives=1, sampling=DRAWN))[0]
    assert answer.text.startswith("héllo")
    assert [said.id for said in answer.said[:6]] == tokenizer.encode("héllo")
    assert answer.said[0].log_prob is not None  # it follows the beginning of a document
    assert [said.offset for said in answer.said[:6]] == [0, 1, 1, 2, 3, 4]


def test_special_tokens(tokenizer):
    text = Text(tokenizer, 265)
    assert text.ids("a") == ([1, *tokenizer.encode("a")], 1) and text.ids("") == ([1], 1) and text.ids([5, 6]) == ([5, 6], 0)
    assert text.ends == (2,) and text.never == (0, 1, 260, 261, 262, 263, 264)


def test_few_shot():
    assert few_shot("Do.", [("a", "b"), ("c", "d")], "e") == "Do.\n\nInput: a\nOutput: b\n\nInput: c\nOutput: d\n\nInput: e\nOutput:"
    assert few_shot("", [], "x", given="Q", wanted="A") == "Q: x\nA:"


@pytest.fixture
def run(tmp_path, tokenizer):
    """A run directory of a tiny GPT."""
    from safetensors.torch import save_file

    torch.manual_seed(1)
    model = build("gpt2", {"vocab": 260, "length": 64, "width": 16, "heads": 2, "depth": 1})
    write_config(tmp_path, "language", {}, config_of(model), {})
    save_file(weights_of(model), tmp_path / "model.safetensors")
    Tokenizers(tokenizer).save(tmp_path / "tokenizer.json")
    return tmp_path


def test_command(run, capsys, monkeypatch):
    import io

    def said(*more):
        assert main(["complete", str(run), *more]) == 0
        return capsys.readouterr().out

    plain = said("ab", "--max-tokens", "9")
    monkeypatch.setattr("sys.stdin", io.StringIO("ab"))
    assert said("--max-tokens", "9") == plain
    assert said("ab", "--max-tokens", "9", "--lookup", "3") == plain
    assert said("ab", "--max-tokens", "9", "--echo") == "ab" + plain
    drawn = [json.loads(line) for line in said("ab", "cd", "--n", "2", "--temperature", "1", "--json").strip().split("\n")]
    assert [line["prompt"] for line in drawn] == ["ab", "ab", "cd", "cd"] and drawn[0]["text"] != drawn[1]["text"]
    assert said("ab", "--weights", "int8", "--max-tokens", "2")
    assert main(["complete", str(run), "ab", "--max-tokens", "1000"]) == 2
    assert "at most 64" in capsys.readouterr().err
    assert main(["complete", str(run / "nowhere"), "ab"]) == 2


def test_ids_that_the_tokenizer_does_not_know(tokenizer):
    """A model may have room for more tokens than there are: they have no text."""
    model = Small(vocab=300)
    assert complete(model, tokenizer, [[259, 10]], Options(most=3))
    with pytest.raises(NotSupported, match="260"):
        complete(model, tokenizer, [[260, 10]], Options(most=3))
