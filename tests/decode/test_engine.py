"""Continuous batching: the same completions alone and in a batch, whole characters, slots that are freed."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_lm import Small

from regard.data import Tokenizer
from regard.decode import DecoderTokens, Engine, EngineOptions, GenerationOptions, Request, Sampling, sample
from regard.decode.requests import find_stop
from regard.errors import NotSupported, QueueFull

BYTES = Tokenizer.train([], "byte", 260)
MODEL = Small()
WHOLE = 2**31


def request(prompt, **options):
    return Request(prompt=prompt, options=GenerationOptions(**options))


def run(engine, requests, every=0):
    """All completions, each as (text, tokens, finish reason, log-probabilities); a request arrives every so many steps, or all at once."""
    waiting, rows, seen = list(requests), [], {}
    for step in range(100_000):
        while waiting and (not every or step % every == 0):
            rows += engine.submit(replace(waiting.pop(0)))
            if every:
                break
        if not engine.busy and not waiting:
            break
        for chunk in engine.step():
            seen.setdefault(chunk.completion, []).append(chunk)
    out = []
    for row in rows:
        chunks = seen[row]
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1) and chunks[
            -1
        ].finish_reason == row.finish_reason
        assert "".join(chunk.text for chunk in chunks) == row.text
        assert [token for chunk in chunks for token in chunk.logprobs] == row.logprobs
        out.append((row.text, row.ids, row.finish_reason, row.logprobs))
    return out


def random_request(rng):
    return request(
        [rng.randrange(4, 260) for _ in range(rng.randrange(1, 40))],
        max_tokens=rng.randrange(1, 30),
        temperature=rng.choice([0, 0, 0.7, 1.3]),
        top_k=rng.choice([0, 5]),
        top_p=rng.choice([1, 0.8]),
        min_p=rng.choice([0, 0.05]),
        seed=rng.randrange(WHOLE),
        stop=rng.choice([(), ("e",), ("a b", "\n")]),
        presence_penalty=rng.choice([0, 0, 0.5]),
        frequency_penalty=rng.choice([0, 0.3]),
        logit_bias=rng.choice([{}, {100: 3.0, 101: -100.0}]),
        logprobs=rng.choice([None, 0, 3]),
        echo=rng.choice([False, False, True]),
        n=2,
    )


def close(one, two):
    """Equal but for the last digits of log-probabilities."""
    assert one[:3] == two[:3]
    for a, b in zip(one[3], two[3], strict=True):
        assert (a.id, a.offset, [i for i, _ in a.top]) == (b.id, b.offset, [i for i, _ in b.top])
        assert a.log_prob == b.log_prob or abs(a.log_prob - b.log_prob) < 1e-4


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("every", [0, 1, 3])
def test_neighbours_do_not_matter(every, joins):
    rng = random.Random(every)
    requests = [random_request(rng) for _ in range(25)]
    alone = [run(Engine(MODEL, BYTES.decode), [one]) for one in requests]
    together = run(Engine(Small(joins=joins), BYTES.decode, EngineOptions(max_batch=7, prefill_chunk=16)), requests, every)
    for number, answers in enumerate(alone):
        close(answers[0], together[2 * number])
        close(answers[1], together[2 * number + 1])


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_says_what_sample_says(temperature):
    prompt, options = [10, 20, 30], Sampling(temperature=temperature, seed=5, max_tokens=20)
    state = MODEL.start(2)
    with torch.no_grad():
        MODEL.features(torch.tensor([prompt[:-1]] * 2), state=state)
    expected = sample(
        MODEL, state, options, source_n_B=torch.tensor([1, 1]), tokens=DecoderTokens(), first_B=torch.tensor([30, 30])
    )  # fmt: skip
    got = run(Engine(MODEL, BYTES.decode), [request(prompt, max_tokens=20, temperature=temperature, seed=5, logprobs=0, n=2)])
    for one, two in zip(expected, got, strict=True):
        assert one.ids == [token for token in two[1] if token != 2]
        assert torch.tensor(one.log_probs).allclose(torch.tensor([token.log_prob for token in two[3]]), atol=1e-4)


def test_scores_of_an_echoed_prompt_are_the_models():
    prompt = [random.Random(0).randrange(4, 260) for _ in range(50)]
    scored = request(prompt, max_tokens=0, echo=True, logprobs=3)
    for chunk in (1, 7, 128):
        ((text, ids, finish, said),) = run(Engine(MODEL, BYTES.decode, EngineOptions(prefill_chunk=chunk)), [scored])
        with torch.no_grad():
            log_probs = MODEL(torch.tensor([prompt]))[0].log_softmax(-1)
        assert (text, ids, finish, [one.id for one in said]) == (BYTES.decode(prompt), [], "length", prompt)
        assert said[0].log_prob is None and said[0].top == ()
        for t, one in enumerate(said[1:]):
            assert one.log_prob == pytest.approx(log_probs[t, one.id].item(), abs=1e-4)
            assert [i for i, _ in one.top] == log_probs[t].topk(3).indices.tolist()


TOKEN_OF = {BYTES._surface[i]: i for i in range(4, 260)}


class Scripted(Small):
    """Generates the bytes of a text and then the end token, whatever it reads."""

    def __init__(self, text):
        super().__init__(joins=False)
        self.script = [TOKEN_OF[bytes([byte])] for byte in text] + [2] * 100

    def logits(self, x):
        return torch.nn.functional.one_hot(x[..., 0].round().long(), 260) * 50.0

    def features(self, ids_BL, document_BL=None, state=None):
        for _ in range(ids_BL.shape[1]):
            state.move(state.h_BD)
        said = torch.tensor(self.script[state.length - ids_BL.shape[1] : state.length]).float()
        return said[None, :, None].expand(len(ids_BL), -1, 24)


def scripted(text, **options):
    return run(Engine(Scripted(text), BYTES.decode), [request([5], **options)])[0]


def test_characters_come_whole():
    text = "naïve 東京 😀 end"
    got = scripted(text.encode(), max_tokens=100, logprobs=0)
    assert got[0] == text and got[2] == "stop"
    offsets = [token.offset for token in got[3]]
    assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] == len(text)
    assert len(offsets) == len(text.encode()) + 1  # the end token is one of them


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=3), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_no_half_characters_and_no_stop_strings(text, stops, most):
    raw = text.encode("utf-8", "ignore")
    got = scripted(raw, max_tokens=most, stop=tuple(stops), logprobs=0)
    whole = raw[:most].decode("utf-8", "replace")
    found = find_stop(whole, stops)
    assert got[0] == (whole if found is None else whole[: found[0]])
    assert got[2] == ("length" if found is None and len(raw) >= most else "stop")
    if found is not None:
        assert all(token.offset < len(got[0]) for token in got[3])


def test_stop_ends_the_work_at_once():
    got = scripted(b"one two three", max_tokens=50, stop=(" tw",))
    assert got[0] == "one" and len(got[1]) == len("one tw")


def test_biases_and_penalties():
    def greedy(**more):
        return run(Engine(MODEL, BYTES.decode), [request([9, 9], max_tokens=12, **more)])[0][1]

    plain = greedy()
    assert greedy(logit_bias={plain[0]: -100.0})[0] != plain[0]
    assert greedy(logit_bias={77: 100.0}) == [77] * 12
    assert len(set(greedy(logit_bias={77: 30.0}, presence_penalty=100.0))) == 12
    heavy = greedy(logit_bias={77: 60.0}, frequency_penalty=11.0)
    assert heavy.count(77) > 1 and heavy != [77] * 12


def test_bounds():
    engine = Engine(MODEL, BYTES.decode, EngineOptions(max_batch=2, max_context_tokens=100, max_queue=3))
    for prompt, most, copies in (([5] * 500, 13, 1), ([5], 1, 3), ([5], 60, 2), ([260], 1, 1), ([-1], 1, 1)):
        with pytest.raises(NotSupported):
            engine.submit(request(prompt, max_tokens=most, n=copies))
    with pytest.raises(NotSupported):
        engine.submit(request([5], logit_bias={260: 1.0}))
    for _ in range(3):
        engine.submit(request([5] * 20, max_tokens=30, logit_bias={2: -100.0}))
    with pytest.raises(QueueFull, match="queue is full"):
        engine.submit(request([5]))
    most = 0
    while engine.busy:
        engine.step()
        most = max(most, engine.running)
    assert most == 2
    with pytest.raises(NotSupported, match="eval"):
        Engine(Small().train(), BYTES.decode)


def test_a_request_is_submitted_once():
    engine, once = Engine(MODEL, BYTES.decode), request([5], max_tokens=1)
    engine.submit(once)
    with pytest.raises(NotSupported, match="submitted before"):
        engine.submit(once)


def test_running_rows_do_not_starve():
    """While a long prompt is read, running completions get a token per step."""
    engine = Engine(MODEL, BYTES.decode, EngineOptions(prefill_chunk=10))
    (first,) = engine.submit(request([5], max_tokens=200, logit_bias={2: -100.0}))
    engine.step()
    (second,) = engine.submit(request([6] * 100, max_tokens=2))
    steps = 0
    while not second.ids:
        before = len(first.ids)
        engine.step()
        steps += 1
        assert len(first.ids) == before + 1
    assert steps == 10


def test_who_leaves_gives_the_place_back():
    engine = Engine(MODEL, BYTES.decode, EngineOptions(max_batch=2, prefill_chunk=4))
    rows = [engine.submit(request([5] * 9, max_tokens=100, logit_bias={2: -100.0}))[0] for _ in range(5)]
    for gone in (3, 0, 1):  # one that waits, one that is read, one that runs
        engine.step()
        engine.cancel(rows[gone])
    while engine.busy:
        engine.step()
    assert [row.finish_reason for row in rows] == [None, None, "length", None, "length"]
    assert engine.running == engine.queued == 0


class Broken(Small):
    def logits(self, x):
        return super().logits(x) * torch.nan


def test_a_model_of_nonsense_is_refused():
    engine = Engine(Broken(), BYTES.decode)
    engine.submit(request([5], temperature=1))
    with pytest.raises(NotSupported, match="not finite"):
        engine.step()
    engine.clear()
    assert not engine.busy


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_looking_up_changes_nothing(temperature):
    """The same completions with and without prompt lookup, in fewer steps where the model repeats itself."""
    rng = random.Random(1)
    guessed = 0
    for _ in range(6):
        cycle = [rng.randrange(4, 260) for _ in range(5)]
        asked = request(
            cycle * 4,
            max_tokens=40,
            temperature=temperature,
            seed=3,
            logprobs=2,
            logit_bias={2: -100.0},
            frequency_penalty=rng.choice([0, 0.1]),
        )
        plain, looking = Engine(MODEL, BYTES.decode), Engine(MODEL, BYTES.decode, EngineOptions(prompt_lookup=6))
        (one,), steps = run(plain, [asked]), 0
        (row,) = looking.submit(asked)
        while looking.busy:
            steps += 1
            looking.step()
        close(one, (row.text, row.ids, row.finish_reason, row.logprobs))
        guessed += 40 - steps
    assert temperature or guessed > 0


def test_looking_up_is_refused_where_one_cannot_go_back():
    class Onward(Small):
        def start(self, batch):
            state = super().start(batch)
            state.before = ()
            state.move = lambda h: setattr(state, "h_BD", h)
            return state

    with pytest.raises(NotSupported, match="prompt_lookup"):
        Engine(Onward(), BYTES.decode, EngineOptions(prompt_lookup=4))


def test_who_leaves_while_being_read_is_read_no_further():
    """The longest prompt is cancelled: the others begin at once, and are completed as if alone."""
    long, short = request([5] * 400, max_tokens=2), request([6, 7, 8], max_tokens=5)
    engine = Engine(MODEL, BYTES.decode, EngineOptions(prefill_chunk=16))
    (gone,), (stays,) = engine.submit(long), engine.submit(short)
    engine.step()
    assert not stays.ids
    engine.cancel(gone)
    engine.step()
    assert stays.ids and engine.running == 1
    while engine.busy:
        engine.step()
    close((stays.text, stays.ids, stays.finish_reason, []), run(Engine(MODEL, BYTES.decode), [short])[0])


def test_who_leaves_beside_others_that_are_read():
    prompts = [[5] * 60, [6] * 50, [7] * 40]
    for leaves in range(3):
        engine = Engine(MODEL, BYTES.decode, EngineOptions(prefill_chunk=40))
        rows = [engine.submit(request(prompt, max_tokens=4))[0] for prompt in prompts]
        engine.step()
        engine.cancel(rows[leaves])
        while engine.busy:
            engine.step()
        for row in (row for n, row in enumerate(rows) if n != leaves):
            close((row.text, row.ids, row.finish_reason, []), run(Engine(MODEL, BYTES.decode), [row.request])[0])


def test_the_coldest_temperature_takes_the_best():
    def said(temperature):
        return run(Engine(MODEL, BYTES.decode), [request([5], max_tokens=9, temperature=temperature, top_p=0.9)])[0][1]

    assert said(5e-324) == said(1e-300) == said(1e-40) == said(0)
