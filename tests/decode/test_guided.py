"""Guided decoding: whatever the model, a finished completion is what its grammar says. Schemas are checked by pydantic, which wrote them."""

import json
import re
from typing import Literal

import pytest
import torch

import regard
from regard.cli import main
from regard.data import Tokenizer
from regard.decode import EngineOptions, GenerationOptions, Grammar, GuidedOptions, PromptEncoder, build_engine, generate, generate_ids
from regard.decode.guided import LONGEST
from regard.errors import NotSupported
from regard.models import build

pydantic = pytest.importorskip("pydantic", reason="comes with OpenAI's client, and checks what its schemas describe")
pytest.importorskip("llguidance", reason="guided decoding is an extra: pip install 'regard[guided]'")

TEXT = ["The quick brown fox jumps over the lazy dog 0123456789.", '{"name": "Ada", "age": 36, "tags": ["x"], "on": true, "off": false}']
PRINTABLE = "".join(map(chr, range(32, 127)))
KINDS = ("byte", "char", "bpe", "unigram")
WILD = {"temperature": 2.0, "max_tokens": 600}


class Pet(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    kind: Literal["cat", "dog"]
    age: int = pydantic.Field(ge=0, le=30)


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=-5, le=150)
    pets: list[Pet] = pydantic.Field(max_length=2)
    on: bool
    note: str | None = pydantic.Field(max_length=4)


@pytest.fixture(scope="module", params=KINDS)
def language(request):
    """A model of random parameters that knows nothing of JSON, and its tokenizer."""
    torch.manual_seed(0)
    lines = [*TEXT, *(PRINTABLE for _ in range(3))] * 3
    tokenizer = Tokenizer.train(lines, request.param, 400 if request.param != "char" else 200, min_count=1)
    model = build("gpt2", {"vocab_size": len(tokenizer) + 3, "context_length": 64, "width": 16, "heads": 2, "depth": 1}).eval()
    return model, tokenizer  # the model has more tokens than the tokenizer, as some published ones have


def complete(language, grammar, prompts="x", engine_options=None, **options):
    return generate(*language, prompts, GuidedOptions(grammar=grammar, **{**WILD, **options}), engine_options)


def test_json_schema(language):
    grammar = Grammar.json_schema(Person.model_json_schema())
    completions = complete(language, grammar, ["He is ", "{"], n=8, seed=1)
    for one in (one for row in completions for one in row):
        assert one.finish_reason == "stop", one
        Person.model_validate_json(one.text)
        assert one.text == json.dumps(json.loads(one.text), ensure_ascii=False, separators=(",", ":")) or "\\" in one.text


@pytest.mark.parametrize("pattern", [r"[a-f]{3}-\d{2,5}", r"(yes|no)(, (yes|no)){2}", r"a/b\\c", r"[^x]{1,20}y", "1 \n2"])
def test_regex(language, pattern):
    for one in complete(language, Grammar.regex(pattern), n=6, seed=2)[0]:
        assert one.finish_reason == ("error" if "\n" in pattern and language[1].kind == "char" else "stop"), one
        assert one.finish_reason == "error" or re.fullmatch(pattern, one.text), one.text


def test_choice(language):
    texts = ["red", "green", 'say "x\\y"', "re"]
    found = {one.text for one in complete(language, Grammar.choice(texts), n=8, seed=3, best_of=16)[0]}
    assert found <= set(texts) and len(found) > 1


def test_sliding_context(language):
    """A completion longer than the context is re-read from its middle, and its grammar goes on where it was."""
    (one,) = complete(language, Grammar.regex(r"(\d{9} ){30}"), seed=1)[0]
    assert re.fullmatch(r"(\d{9} ){30}", one.text) and one.finish_reason == "stop"


def test_cut_off(language):
    (one,) = complete(language, Grammar.regex(r"\d{500}"), max_tokens=7, seed=1)[0]
    assert one.finish_reason == "length" and re.fullmatch(r"\d+", one.text)


def test_others_in_the_batch_are_free(language):
    """And each is what it would be alone."""
    model, tokenizer = language
    alone = complete(language, Grammar.regex(r"\d{20}"), seed=5)[0][0].text
    free = generate(model, tokenizer, "x", GenerationOptions(temperature=2.0, max_tokens=30, seed=5))[0][0].text
    encoder = PromptEncoder(tokenizer, model.config.vocab_size)
    engine = build_engine(model, encoder)
    options = (
        GuidedOptions(**WILD, seed=5, grammar=Grammar.regex(r"\d{20}")),
        GenerationOptions(temperature=2.0, max_tokens=30, seed=5),
    )
    completions = [engine.submit(request)[0] for one in options for request in encoder.requests("x", one)]
    while engine.busy:
        engine.step()
    assert [one.text for one in completions] == [alone, free]


def test_prompt_lookup_changes_nothing(language):
    grammar = Grammar.regex(r"(ab|cd){40}")
    plain, proposed = (
        complete(language, grammar, "abab", engine_options=EngineOptions(prompt_lookup=n), seed=1)[0][0].text for n in (0, 4)
    )
    assert plain == proposed


def test_greedy_with_penalties_and_biases(language):
    grammar = Grammar.json_schema(Person.model_json_schema())
    options = {"temperature": 0, "repetition_penalty": 1.5, "presence_penalty": 1.0, "logit_bias": {7: 100.0, 9: -100.0}}
    Person.model_validate_json(complete(language, grammar, **options)[0][0].text)


def test_tools(language):
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}
    grammar = Grammar.tools({"weather": schema, "time": None}, required=True)
    for one in complete(language, grammar, n=4, seed=1)[0]:
        call = json.loads(re.fullmatch(r"<tool_call>(.*)</tool_call>", one.text)[1])
        assert call in (
            {"name": "weather", "arguments": {"city": "Oslo"}},
            {"name": "weather", "arguments": {"city": "Rome"}},
            {"name": "time", "arguments": {}},
        )
    for one in complete(language, Grammar.tools({"time": None}, required=False), n=6, seed=1, max_tokens=80)[0]:
        assert not one.text.startswith("<") or one.text == '<tool_call>{"name":"time","arguments":{}}</tool_call>'


def test_command(tmp_path, capsys):
    tokenizer = Tokenizer.train([], "byte", 260)
    model = build("gpt2", {"vocab_size": 260, "context_length": 64, "width": 16, "heads": 2, "depth": 1})
    run = str(regard.save(model, tmp_path / "run", tokenizer=tokenizer))
    (tmp_path / "schema.json").write_text(json.dumps(Pet.model_json_schema()))
    schema = ("--json-schema", str(tmp_path / "schema.json"))
    assert main(["complete", run, "x", *schema, "--temperature", "2"]) == 0
    Pet.model_validate_json(capsys.readouterr().out)
    assert main(["complete", run, "x", "--regex", "[ab]{4}", "--json", "--n", "2"]) == 0
    assert all(re.fullmatch("[ab]{4}", json.loads(line)["text"]) for line in capsys.readouterr().out.strip().split("\n"))
    for wrong, message in (
        ((*schema, "--regex", "a"), "give one of them"),
        (("--regex", "("), "refused"),
        (("--regex", "a", "--stop", "b"), "stop"),
    ):
        assert main(["complete", run, "x", *wrong]) == 2 and message in capsys.readouterr().err


def test_what_the_vocabulary_lacks():
    tokenizer = Tokenizer.train(["abc{}[]:,0123456789"], "char", 64, min_count=1)
    model = build("gpt2", {"vocab_size": len(tokenizer), "context_length": 32, "width": 8, "heads": 1, "depth": 1}).eval()
    with pytest.raises(NotSupported, match="no token for its first character"):
        complete((model, tokenizer), Grammar.regex("xyz"), "a")
    (one,) = complete((model, tokenizer), Grammar.regex("abx"), "a")[0]  # it is seen only when it comes
    assert (one.text, one.finish_reason) == ("ab", "error")


def test_refused():
    model = build("gpt2", {"vocab_size": 60, "context_length": 32, "width": 8, "heads": 1, "depth": 1}).eval()
    words = Tokenizer.train(["a b c"], "word", 60, min_count=1)
    with pytest.raises(NotSupported, match="kind word"):
        complete((model, words), Grammar.choice(["a"]))
    with pytest.raises(NotSupported, match="needs the model's tokenizer"):
        generate_ids(model, [[5]], GuidedOptions(grammar=Grammar.json_object()))
    with pytest.raises(NotSupported, match="stop"):
        GuidedOptions(grammar=Grammar.json_object(), stop=("}",))
    with pytest.raises(NotSupported, match=f"at most {LONGEST:,}"):
        Grammar.json_schema({"description": "x" * LONGEST})
    for wrong in ("{", "[1]", "3"):
        with pytest.raises(NotSupported, match="JSON"):
            Grammar.json_schema(wrong)
    with pytest.raises(NotSupported, match="one or more texts"):
        Grammar.choice([])
    chars = Tokenizer.train([PRINTABLE], "char", 200, min_count=1)
    model = build("gpt2", {"vocab_size": len(chars), "context_length": 32, "width": 8, "heads": 1, "depth": 1}).eval()
    for grammar in (
        Grammar.json_schema({"type": "integer", "minimum": 5, "maximum": 4}),
        Grammar.json_schema({"not": {"type": "integer"}}),
        Grammar.json_schema({"$ref": "http://localhost/x"}),
        Grammar.json_schema({"$ref": "#"}),
        Grammar.regex("(unclosed"),
        Grammar.regex("(" * 5000 + ")" * 5000),
    ):
        with pytest.raises(NotSupported, match="grammar"):
            complete((model, chars), grammar)
