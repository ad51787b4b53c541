"""OpenAI's own client, unchanged, against the server."""

import pytest

from regard.decode import GenerationOptions, generate

openai = pytest.importorskip("openai", reason="OpenAI's Python client is not installed")

NAME = "tiny"
ALL = {"max_tokens": 12, "logit_bias": {"2": -100}}  # never ends by itself


def expected(served, prompt, **options):
    options = GenerationOptions(max_tokens=12, logit_bias={2: -100.0}, **options)
    return generate(served.service.engine.model, served.tokenizer, prompt, options)[0]


def greedy(served, prompt, **options):
    return expected(served, prompt, temperature=0, **options)


def test_create(served, client):
    found = client.completions.create(model=NAME, prompt="Hello", temperature=0, **ALL)
    (right,) = greedy(served, "Hello")
    assert (found.object, found.model, len(found.choices)) == ("text_completion", NAME, 1)
    assert found.choices[0].text == right.text and found.choices[0].finish_reason == "length" and found.choices[0].logprobs is None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (6, 12, 18)


def test_defaults(client):
    found = client.completions.create(model=NAME, prompt="Hello")
    assert found.usage.completion_tokens <= 16


def test_stream(served, client):
    parts = list(
        client.completions.create(
            model=NAME, prompt=["one", "two"], n=2, seed=4, stream=True, stream_options={"include_usage": True}, **ALL
        )
    )
    text, finish = [""] * 4, [None] * 4
    for part in parts[:-1]:
        assert part.usage is None
        (choice,) = part.choices
        text[choice.index] += choice.text
        finish[choice.index] = choice.finish_reason
    right = [answer.text for prompt in ("one", "two") for answer in expected(served, prompt, n=2, temperature=1, seed=4)]
    assert text == right and finish == ["length"] * 4
    assert parts[-1].choices == [] and parts[-1].usage.completion_tokens == 48
    assert len({part.id for part in parts}) == 1


def test_stop(served, client):
    (right,) = greedy(served, "Hello")
    stop = right.text[4:6]
    for stops in (stop, [stop, "never to be seen"]):
        found = client.completions.create(model=NAME, prompt="Hello", temperature=0, stop=stops, **ALL)
        assert (found.choices[0].text, found.choices[0].finish_reason) == (right.text[: right.text.index(stop)], "stop")
        text = "".join(
            part.choices[0].text
            for part in client.completions.create(model=NAME, prompt="Hello", temperature=0, stop=stops, stream=True, **ALL)
        )
        assert text == found.choices[0].text


def test_logprobs(served, client):
    found = client.completions.create(model=NAME, prompt="Hi", temperature=0, logprobs=3, echo=True, **ALL)
    (right,) = greedy(served, "Hi", logprobs=3, echo=True)
    told = found.choices[0].logprobs
    assert found.choices[0].text == right.text and right.text.startswith("Hi")
    assert (
        told.tokens[:2] == ["H", "i"]
        and len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 14
    )
    assert told.token_logprobs == pytest.approx([token.log_prob for token in right.logprobs], abs=1e-4)
    for token, log_prob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[token] == log_prob and 3 <= len(top) <= 4
    assert told.text_offset[:3] == [0, 1, 2]


def test_n_and_best_of(served, client):
    def ask(**more):
        found = client.completions.create(model=NAME, prompt="Hello", seed=9, **more, **ALL)
        return [choice.text for choice in found.choices], found.usage

    all_, used = ask(n=5)
    best, more_used = ask(n=2, best_of=5)
    ranked = sorted(expected(served, "Hello", n=5, temperature=1, seed=9), key=lambda answer: -answer.log_prob / len(answer.ids))
    assert best == [answer.text for answer in ranked[:2]] and set(best) <= set(all_)
    assert len(set(all_)) == 5 and used == more_used and used.prompt_tokens == 6
    assert ask(n=5)[0] == all_  # a seed says it all


def test_prompts_of_every_kind(served, client):
    ids = served.tokenizer.encode("Hello")
    for prompt, count in (("Hello", 1), (["Hello", "World"], 2), ([1, *ids], 1), ([[1, *ids], [1, 50]], 2), ("", 1)):
        found = client.completions.create(model=NAME, prompt=prompt, temperature=0, **ALL)
        assert len(found.choices) == count and [choice.index for choice in found.choices] == list(range(count))
    texts = [client.completions.create(model=NAME, prompt=prompt, temperature=0, **ALL).choices[0].text for prompt in ("Hello", [1, *ids])]
    assert texts[0] == texts[1]


def test_penalties_and_sampling(client):
    for more in (
        {"presence_penalty": 2},
        {"frequency_penalty": -2},
        {"top_p": 0.5},
        {"top_p": 0},
        {"extra_body": {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.2}},
    ):
        assert client.completions.create(model=NAME, prompt="x", **more, **ALL).choices[0].finish_reason == "length"
    greedy, one = (
        client.completions.create(model=NAME, prompt="x", **more, **ALL).choices[0].text
        for more in ({"temperature": 0}, {"extra_body": {"top_k": 1}})
    )
    assert greedy == one


@pytest.mark.parametrize(
    ("more", "kind", "param"),
    [
        ({"max_tokens": 100_001}, openai.BadRequestError, "max_tokens"),
        ({"temperature": 2.5}, openai.BadRequestError, "temperature"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"n": 3, "best_of": 2}, openai.BadRequestError, "best_of"),
        ({"best_of": 2, "stream": True}, openai.BadRequestError, "best_of"),
        ({"suffix": "the end"}, openai.BadRequestError, "suffix"),
        ({"stop": ["a"] * 17}, openai.BadRequestError, "stop"),
        ({"logit_bias": {"260": 1}}, openai.BadRequestError, "logit_bias"),
        ({"logprobs": 21}, openai.BadRequestError, "logprobs"),
        ({"prompt": [260]}, openai.BadRequestError, "prompt"),
        ({"prompt": "x" * 200}, openai.BadRequestError, "prompt"),
        ({"prompt": "x" * 10_000}, openai.BadRequestError, "prompt"),
        ({"stream_options": {"include_usage": True}}, openai.BadRequestError, "stream_options"),
        ({"stream_options": {"include_usage": True, "wrong": True}, "stream": True}, openai.BadRequestError, "stream_options"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temprature"),
        ({"model": "gpt-5"}, openai.NotFoundError, "model"),
    ],
)  # fmt: skip
def test_errors(client, more, kind, param):
    with pytest.raises(kind) as caught:
        client.completions.create(**{"model": NAME, "prompt": "x", **more})
    assert caught.value.param == param and caught.value.message and caught.value.type == "invalid_request_error"


def test_wrong_key(served):
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="another-key", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.completions.create(model=NAME, prompt="x")


def test_models(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/one")


def test_completions_go_on_beyond_the_context(served, client):
    """A context of 128 tokens: the prompt must fit, the completion need not."""
    ask = {"model": NAME, "prompt": "x" * 120, "temperature": 0, "max_tokens": 128, "logit_bias": {"2": -100}}
    found = client.completions.create(**ask)
    options = GenerationOptions(temperature=0, max_tokens=128, logit_bias={2: -100.0})
    assert found.choices[0].text == generate(served.service.engine.model, served.tokenizer, "x" * 120, options)[0][0].text
    assert found.usage.completion_tokens == 128
    assert "".join(part.choices[0].text for part in client.completions.create(**ask, stream=True)) == found.choices[0].text


def test_equal_prompts_are_drawn_independently(client):
    def texts(**more):
        return [choice.text for choice in client.completions.create(model=NAME, prompt=["Hello"] * 3, **more, **ALL).choices]

    assert len(set(texts())) == 3
    assert len(set(texts(seed=1))) == 1 and texts(seed=1) == texts(seed=1)


@pytest.mark.parametrize("prompt", ["Hi there", [1, 72, 105]])
def test_offsets_count_the_prompt(served, client, prompt):
    """Offsets count from the beginning of the prompt, as OpenAI's do, though only an echo shows it; streamed or not."""
    ask = {"model": NAME, "prompt": prompt, "temperature": 0, "logprobs": 0, **ALL}
    plain, echoed = (client.completions.create(**ask, echo=echo).choices[0] for echo in (False, True))
    assert plain.logprobs.text_offset == echoed.logprobs.text_offset[-12:]
    assert plain.logprobs.text_offset[0] == len(echoed.text) - len(plain.text) > 0
    streamed = [at for part in client.completions.create(**ask, stream=True) for at in part.choices[0].logprobs.text_offset]
    assert streamed == plain.logprobs.text_offset
