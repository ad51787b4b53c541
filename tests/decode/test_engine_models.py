"""The engine with real models and all kinds of states: the same tokens alone, in a batch, and with prompt lookup."""

import random
from dataclasses import replace

import pytest
import torch

from regard.decode import Engine, EngineOptions, GenerationOptions, Request
from regard.errors import NotSupported, StateNotSupported
from regard.models import build

SMALL = {"vocab_size": 97, "context_length": 160, "width": 32}
HEADS = {**SMALL, "heads": 4, "depth": 2}
MODELS = {
    "gpt": ("gpt", HEADS),
    "gpt2": ("gpt2", HEADS),
    "gpt3": ("gpt3", HEADS),
    "llama": ("llama", HEADS),
    "rnn_lm": ("rnn_lm", SMALL),
    "rolling": ("gpt2", {**HEADS, "attention": ("local(radius=5)",)}),
    "sinks": ("llama", {**HEADS, "attention": ("softmax", "streaming(back=4, first=2)")}),
    "running": ("gpt2", {**HEADS, "attention": ("linear", "softmax")}),
    "blocks": ("gpt2", {**HEADS, "attention": ("softmax", "memory_compressed")}),
}
CANNOT_GO_BACK = {"rnn_lm", "running", "blocks"}


def made(name, **more):
    torch.manual_seed(0)
    kind, settings = MODELS[name]
    model = build(kind, {**settings, **more}).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 3  # sure enough of itself that no rounding changes a choice
    return model


def answers(model, requests, eos_ids=(2,), **options):
    engine = Engine(model, str, EngineOptions(**options), eos_ids=eos_ids, banned_ids=(0, 1) if eos_ids else ())
    rows = [engine.submit(replace(request))[0] for request in requests]
    widest = 0
    while engine.busy:
        engine.step()
        widest = max(widest, engine.cached_tokens)
    return [row.ids for row in rows], widest


@pytest.mark.parametrize("name", MODELS)
def test_alone_in_company_and_guessing(name):
    model, rng = made(name), random.Random(0)
    requests = [
        Request(
            prompt=[rng.randrange(3, 97) for _ in range(rng.randrange(1, 40))] * rng.choice([1, 2]),
            options=GenerationOptions(max_tokens=rng.randrange(1, 40), temperature=rng.choice([0, 1]), seed=seed),
        )
        for seed in range(16)
    ]
    alone = [answers(model, [request])[0][0] for request in requests]
    together, widest = answers(model, requests, max_batch=6, prefill_chunk=16)
    assert together == alone
    assert widest < 120  # what no row looks at any more is dropped, however long the stream of rows is
    if name in CANNOT_GO_BACK:
        with pytest.raises(NotSupported, match="prompt_lookup"):
            answers(model, requests[:1], prompt_lookup=4)
    else:
        assert [answers(model, [request], prompt_lookup=4)[0][0] for request in requests] == alone


@pytest.mark.parametrize("name", sorted(MODELS.keys() - CANNOT_GO_BACK))
def test_going_back_is_never_having_read(name):
    model = made(name)
    ids_BL, other_BL = torch.randint(3, 97, (2, 50)), torch.randint(3, 97, (2, 4))
    right, state = model.start(2), model.start(2)
    with torch.no_grad():
        for n in range(0, 50, 5):
            for part in (right, state):
                model.features(ids_BL[:, n : n + 5], state=part)
            model.features(torch.randint(3, 97, (2, 3)), state=state)
            state.back(3)
        assert state.length == right.length == 50
        assert torch.allclose(model.features(other_BL, state=state), model.features(other_BL, state=right), atol=1e-4)
    with pytest.raises(StateNotSupported):
        state.back(55)


def slid(model, prompt, count, length):
    """Greedy completion by the rule alone: a full context drops its older half, and the rest is read from position 0."""
    window, ids = [], []

    def push(token):
        window.append(token)
        if len(window) > length:
            del window[: length - length // 2]

    for token in prompt:
        push(token)
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([window]))[0, -1].argmax()))
        push(ids[-1])
    return ids


@pytest.mark.parametrize("name", MODELS)
def test_texts_slide_beyond_the_context(name):
    """Alone, in a batch and with prompt lookup; with prompts shorter and longer than the context; by chunks that end anywhere."""
    for length in (16, 7, 1) if name in ("gpt2", "sinks", "blocks") else (7,):  # one of each kind of state takes all
        model, rng = made(name, context_length=length), random.Random(length)
        requests = [
            Request(
                prompt=[rng.randrange(3, 97) for _ in range(size)],
                options=GenerationOptions(max_tokens=rng.randrange(20, 40), temperature=0),
            )
            for size in (1, 6, 15, 16, 17, 40)
        ]
        expected = [slid(model, request.prompt, request.options.max_tokens, length) for request in requests]
        for options in ({}, {"max_batch": 3, "prefill_chunk": 5}, {} if name in CANNOT_GO_BACK else {"prompt_lookup": 3, "max_batch": 1}):
            found, widest = answers(model, requests, eos_ids=(), **options)
            assert found == expected and widest <= length
