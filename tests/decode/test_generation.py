"""Text generation: the same text whole and in chunks, in batches and alone; and the command `regard complete`."""

import json
import re
from dataclasses import fields, replace

import pytest
import torch
import tyro
from small_lm import Small

import regard
from regard.cli import main
from regard.data import Tokenizer, Tokenizers
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
    options = GenerationOptions(max_tokens=5, **SAMPLED)
    found = generate(Small(), tokenizer, prompts, options, EngineOptions(max_queue=3, max_batch=4))
    assert [answers[0].text for answers in found] == [generate(Small(), tokenizer, prompt, options)[0][0].text for prompt in prompts]


def test_a_training_model_answers_and_trains_on(tokenizer):
    model = build("gpt2", {"vocab_size": 260, "context_length": 32, "width": 16, "heads": 2, "depth": 1, "dropout": 0.5}).train()
    one, two = (generate(model, tokenizer, "abc", GenerationOptions(max_tokens=9, **SAMPLED))[0][0].ids for _ in range(2))
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


def test_a_hundred_tokens_by_default_whatever_the_context(tokenizer):
    options = GenerationOptions(logit_bias={2: -100.0}, seed=0)
    answers = generate(Small(length=64), tokenizer, ["a", "b" * 40, "c" * 62], options)
    assert [len(one.ids) for (one,) in answers] == [100] * 3
    with pytest.warns(UserWarning, match="a prompt of 101 tokens.*at most 64"):
        (long,) = generate(Small(length=64), tokenizer, "d" * 100, replace(options, echo=True))[0]
    assert long.text.startswith("d" * 100) and len(long.ids) == 100
    with pytest.raises(NotSupported, match="a prompt of 101 tokens"), pytest.warns(UserWarning):
        generate(Small(length=64), tokenizer, "d" * 100, replace(options, echo=True, logprobs=0))


def test_warnings(tokenizer):
    with pytest.warns(UserWarning, match="temperature 0 are all the same") as caught:
        generate(Small(), tokenizer, "a", GenerationOptions(n=2, temperature=0, max_tokens=2))
    assert caught[0].filename == __file__
    letters = Tokenizer.train(["a small text"], "char", 64, min_count=1)
    with pytest.warns(UserWarning, match="3 of .* ⟨unk⟩: 'é', '☃', '漢'"):
        generate(Small(vocab_size=len(letters)), letters, ["sé☃漢sé", "all"], GenerationOptions(max_tokens=1))
    words = Tokenizer.train(["a small text"], "word", 64, min_count=1)
    with pytest.warns(UserWarning, match="1 of .* ⟨unk⟩: 'tiny'"):
        next(stream(Small(vocab_size=len(words)), words, "a tiny text", GenerationOptions(max_tokens=1)))


def test_token_ids_without_a_tokenizer(tokenizer):
    """The same ids as with one, from lists or tensors; nothing is special about the first ids of somebody's own vocabulary."""
    model, options = Small(), {"max_tokens": 12, "temperature": 0.9, "seed": 3}
    (one,), (two,) = generate(model, None, [[7, 8], [9]], GenerationOptions(**options))
    assert model.generate([[7, 8], [9]], **options) == [one.ids, two.ids] and len(one.ids) == 12 and one.text == ""
    assert model.generate([7, 8], **options) == model.generate(torch.tensor([[7, 8]]), **options) == [one.ids]
    assert len(model.generate([7, 8], n=3, **options)) == 3
    stopped = model.generate([7, 8], eos_ids=one.ids[3:5], **options)
    assert stopped == [one.ids[: len(stopped[0])]] and len(stopped[0]) <= 4
    for wrong, message in (({"ids": "text"}, "no tokenizer"), ({"ids": [260]}, "vocabulary"), ({"ids": [5], "stop": ("a",)}, "stop")):
        with pytest.raises(NotSupported, match=message):
            model.generate(**wrong)


@pytest.mark.parametrize("options", [GenerationOptions, EngineOptions])
def test_a_command_line_can_be_built_from_the_options(options, capsys):
    """The string under each field is its help text."""
    with pytest.raises(SystemExit):
        tyro.cli(options, args=["--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for field in fields(options):
        if field.name == "grammar":  # which commands make from files
            continue
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

    seeded = ("--max-tokens", "9", "--seed", "1")
    plain = said("ab", *seeded)
    monkeypatch.setattr("sys.stdin", io.StringIO("ab"))
    assert said(*seeded) == plain
    assert said("ab", *seeded, "--prompt-lookup", "3") == plain
    assert said("ab", *seeded, "--echo") == "ab" + plain
    drawn = [json.loads(line) for line in said("ab", "cd", "--n", "2", "--json").strip().split("\n")]
    assert [line["prompt"] for line in drawn] == ["ab", "ab", "cd", "cd"] and drawn[0]["text"] != drawn[1]["text"]
    assert said("ab", "--dtype", "int8", "--max-tokens", "2")
    assert len(json.loads(said("ab", "--max-tokens", "100", "--json", "--logit-bias", "2", "-100"))["text"].encode()) >= 100  # of 64
    assert main(["complete", str(run), "ab", "--n", "2", "--temperature", "0", "--max-tokens", "2"]) == 0
    assert capsys.readouterr().err.startswith("regard: 2 completions per prompt at temperature 0 are all the same")
    assert main(["complete", str(run / "nowhere"), "ab"]) == 2


def test_ids_that_the_tokenizer_does_not_know(tokenizer):
    """A model's vocabulary may be larger than its tokenizer's; such ids have no text."""
    model = Small(vocab_size=300)
    assert generate(model, tokenizer, [[259, 10]], GenerationOptions(max_tokens=3))
    with pytest.raises(NotSupported, match="260"):
        generate(model, tokenizer, [[260, 10]], GenerationOptions(max_tokens=3))


def test_prompts_typed_at_a_terminal(run, capsys, monkeypatch):
    """Line by line; Ctrl-C ends a completion or a line, and only Ctrl-D the command."""

    typed = iter(["ab", KeyboardInterrupt, "cut", "ab", EOFError])

    def read(prompt):
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    def stopped(model, tokenizer, prompts, *more):
        chunks = stream(model, tokenizer, prompts, *more)
        if prompts == ["cut"]:
            yield next(chunks)
            raise KeyboardInterrupt
        yield from chunks

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("regard.decode.stream", stopped)
    assert main(["complete", str(run), "--max-tokens", "5", "--seed", "1"]) == 0
    shown = capsys.readouterr()
    assert "Ctrl-C" in shown.err
    (answer,) = generate(regard.load(run), regard.load_run(run).processor.tokenizer, "ab", GenerationOptions(max_tokens=5, seed=1))[0]
    assert shown.out.startswith(answer.text + "\n\n") and shown.out.endswith("\n" + answer.text + "\n\n")
