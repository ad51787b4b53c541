"""Text generation: the same text whole and in chunks, in batches and alone; and the command `regard complete`."""

import json
import re
from dataclasses import fields

import pytest
import torch
import tyro
from small_lm import Small

from regard.cli import main
from regard.data import Tokenizers
from regard.decode import EngineOptions, GenerationOptions, PromptEncoder, few_shot, generate, stream
from regard.errors import NotSupported
from regard.models import build
from regard.runs import save
from regard.tasks import TextProcessor, make_run

SAMPLED = {"temperature": 0.9, "seed": 3}


def test_whole_and_in_pieces(tokenizer):
    model, prompts = Small(), ["one", "", "three and more", [7, 8, 9]]
    options = GenerationOptions(max_tokens=20, **SAMPLED, n=3, logprobs=2, stop=("e", "x y"))
    found, text, ends = generate(model, tokenizer, prompts, options), {}, {}
    for chunk in stream(model, tokenizer, prompts, options, EngineOptions(max_batch=5)):
        at = chunk.completion.request.index, chunk.completion.index
        text[at] = text.get(at, "") + chunk.text
        ends[at] = chunk.finish_reason
    for p, answers in enumerate(found):
        assert len(answers) == 3
        for c, answer in enumerate(answers):
            assert (answer.text, answer.finish_reason) == (text[p, c], ends[p, c])
            assert not any(stop in answer.text for stop in options.stop)
        assert [answer.text for answer in generate(model, tokenizer, prompts[p], options)[0]] == [answer.text for answer in answers]
    assert len({answer.text for answer in found[0]}) > 1


def test_best_of_is_the_best(tokenizer):
    all_, best = (
        generate(Small(), tokenizer, "abc", GenerationOptions(max_tokens=8, **SAMPLED, **more))[0]
        for more in ({"n": 6}, {"n": 2, "best_of": 6})
    )
    ranked = sorted(all_, key=lambda answer: -answer.log_prob / len(answer.ids))
    assert [answer.text for answer in best] == [answer.text for answer in ranked[:2]]
    with pytest.raises(NotSupported, match="best_of"):
        next(stream(Small(), tokenizer, "abc", GenerationOptions(best_of=2)))
    with pytest.raises(NotSupported, match="best_of"):
        GenerationOptions(n=3, best_of=2)


def test_more_prompts_than_may_wait(tokenizer):
    prompts = [f"prompt {n}" for n in range(40)]
    found = generate(Small(), tokenizer, prompts, GenerationOptions(max_tokens=5), EngineOptions(max_queue=3, max_batch=4))
    assert [answers[0].text for answers in found] == [
        generate(Small(), tokenizer, prompt, GenerationOptions(max_tokens=5))[0][0].text for prompt in prompts
    ]


def test_a_training_model_answers_and_trains_on(tokenizer):
    model = build("gpt2", {"vocab_size": 260, "context_length": 32, "width": 16, "heads": 2, "depth": 1, "dropout": 0.5}).train()
    one, two = (generate(model, tokenizer, "abc", GenerationOptions(max_tokens=9))[0][0].ids for _ in range(2))
    assert one == two and model.training and model.blocks[0].training


def test_echo_hides_how_documents_begin(tokenizer):
    (answer,) = generate(Small(), tokenizer, "héllo", GenerationOptions(max_tokens=3, echo=True, logprobs=1, **SAMPLED))[0]
    assert answer.text.startswith("héllo")
    assert [token.id for token in answer.logprobs[:6]] == tokenizer.encode("héllo")
    assert answer.logprobs[0].log_prob is not None  # it follows the beginning of a document
    assert [token.offset for token in answer.logprobs[:6]] == [0, 1, 1, 2, 3, 4]


def test_special_tokens(tokenizer):
    encoder = PromptEncoder(tokenizer, 265)
    assert encoder.encode("a") == ([1, *tokenizer.encode("a")], 1)
    assert encoder.encode("") == ([1], 1) and encoder.encode([5, 6]) == ([5, 6], 0)
    assert encoder.eos_ids == (2,) and encoder.banned_ids == (0, 1, 260, 261, 262, 263, 264)


def test_max_tokens_by_default_fit_the_context(tokenizer):
    model = Small(length=64)
    options = GenerationOptions(logit_bias={2: -100.0})
    short, long, full = (answers[0] for answers in generate(model, tokenizer, ["a", "b" * 40, "c" * 62], options))
    assert [len(one.ids) for one in (short, long, full)] == [62, 23, 1]  # a token begins each
    assert len(generate(Small(), tokenizer, "a", options)[0][0].ids) == 100


@pytest.mark.parametrize("options", [GenerationOptions, EngineOptions])
def test_a_command_line_can_be_built_from_the_options(options, capsys):
    """The string under each field is its help text."""
    with pytest.raises(SystemExit):
        tyro.cli(options, args=["--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for field in fields(options):
        option = re.escape(f"--{field.name.replace('_', '-')}")
        assert re.search(rf"{option}\b.{{0,40}}?[A-Z][a-z]+ [a-z]", shown), field.name
    assert tyro.cli(options, args=[]) == options()


def test_few_shot():
    assert few_shot("Do.", [("a", "b"), ("c", "d")], "e") == "Do.\n\nInput: a\nOutput: b\n\nInput: c\nOutput: d\n\nInput: e\nOutput:"
    assert few_shot("", [], "x", input_label="Q", output_label="A") == "Q: x\nA:"


@pytest.fixture
def run(tmp_path, tokenizer):
    """A run directory of a tiny GPT."""
    torch.manual_seed(1)
    model = build("gpt2", {"vocab_size": 260, "context_length": 64, "width": 16, "heads": 2, "depth": 1})
    return save(make_run("language", model, TextProcessor(Tokenizers(tokenizer))), tmp_path)


def test_command(run, capsys, monkeypatch):
    import io

    def said(*more):
        assert main(["complete", str(run), *more]) == 0
        return capsys.readouterr().out

    plain = said("ab", "--max-tokens", "9")
    monkeypatch.setattr("sys.stdin", io.StringIO("ab"))
    assert said("--max-tokens", "9") == plain
    assert said("ab", "--max-tokens", "9", "--prompt-lookup", "3") == plain
    assert said("ab", "--max-tokens", "9", "--echo") == "ab" + plain
    drawn = [json.loads(line) for line in said("ab", "cd", "--n", "2", "--temperature", "1", "--json").strip().split("\n")]
    assert [line["prompt"] for line in drawn] == ["ab", "ab", "cd", "cd"] and drawn[0]["text"] != drawn[1]["text"]
    assert said("ab", "--dtype", "int8", "--max-tokens", "2")
    assert main(["complete", str(run), "ab", "--max-tokens", "1000"]) == 2
    assert "at most 64" in capsys.readouterr().err
    assert main(["complete", str(run / "nowhere"), "ab"]) == 2


def test_ids_that_the_tokenizer_does_not_know(tokenizer):
    """A model's vocabulary may be larger than its tokenizer's; such ids have no text."""
    model = Small(vocab_size=300)
    assert generate(model, tokenizer, [[259, 10]], GenerationOptions(max_tokens=3))
    with pytest.raises(NotSupported, match="260"):
        generate(model, tokenizer, [[260, 10]], GenerationOptions(max_tokens=3))
