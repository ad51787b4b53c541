"""Batches that change: the same answers alone and in company, text that never breaks, places that are given back."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_lm import Small

from regard.data import Tokenizer
from regard.decode import Engine, Request, Sampling, Stops, Tokens, sample
from regard.errors import Busy, NotSupported

BYTES = Tokenizer.train([], "bytes", 260)
MODEL = Small()
WHOLE = 2**31


def run(engine, requests, copies=1, every=0):
    """All answers, each as (text, tokens, finish); a request comes in every so many steps, or all at once."""
    waiting, rows, seen = list(requests), [], {}
    for step in range(100_000):
        while waiting and (not every or step % every == 0):
            rows.append(engine.submit(waiting.pop(0), copies))
            if every:
                break
        if not engine.busy and not waiting:
            break
        for piece in engine.step():
            seen.setdefault(piece.row, []).append(piece)
    out = []
    for row in (row for some in rows for row in some):
        pieces = seen[row]
        assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1) and pieces[-1].finish == row.finish
        assert "".join(piece.text for piece in pieces) == row.text
        out.append((row.text, row.ids, row.finish, [said for piece in pieces for said in piece.said]))
    return out


def random_request(rng):
    return Request(
        prompt=[rng.randrange(4, 260) for _ in range(rng.randrange(1, 40))],
        most=rng.randrange(1, 30),
        sampling=Sampling(
            temperature=rng.choice([0, 0, 0.7, 1.3]), top_k=rng.choice([0, 5]), top_p=rng.choice([1, 0.8]), min_p=rng.choice([0, 0.05]),
            seed=rng.randrange(WHOLE),
        ),
        stops=Stops(rng.choice([(), ("e",), ("a b", "\n")])),
        presence=rng.choice([0, 0, 0.5]),
        frequency=rng.choice([0, 0.3]),
        bias=rng.choice([{}, {100: 3.0, 101: -100.0}]),
        alternatives=rng.choice([None, 0, 3]),
        echo=rng.choice([False, False, True]),
    )  # fmt: skip


def close(one, two):
    """Equal but for the last digits of log-probabilities."""
    assert one[:3] == two[:3]
    for a, b in zip(one[3], two[3], strict=True):
        assert (a.id, a.offset, [i for i, _ in a.likeliest]) == (b.id, b.offset, [i for i, _ in b.likeliest])
        assert a.log_prob == b.log_prob or abs(a.log_prob - b.log_prob) < 1e-4


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("every", [0, 1, 3])
def test_neighbours_do_not_matter(every, joins):
    rng = random.Random(every)
    requests = [random_request(rng) for _ in range(25)]
    alone = [run(Engine(MODEL, BYTES.decode), [request], 2) for request in requests]
    together = run(Engine(Small(joins=joins), BYTES.decode, rows=7, chunk=16), requests, 2, every)
    for number, answers in enumerate(alone):
        close(answers[0], together[2 * number])
        close(answers[1], together[2 * number + 1])


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_says_what_sample_says(temperature):
    prompt, options = [10, 20, 30], Sampling(temperature=temperature, seed=5, most=20)
    state = MODEL.begin(2)
    with torch.no_grad():
        MODEL.features(torch.tensor([prompt[:-1]] * 2), state=state)
    expected = sample(
        MODEL, state, options, source_n_B=torch.tensor([1, 1]), tokens=Tokens(), first_B=torch.tensor([30, 30])
    )  # fmt: skip
    got = run(Engine(MODEL, BYTES.decode), [Request(prompt=prompt, most=20, sampling=options, alternatives=0)], 2)
    for one, two in zip(expected, got, strict=True):
        assert one.ids == [token for token in two[1] if token != 2]
        assert torch.tensor(one.log_probs).allclose(torch.tensor([said.log_prob for said in two[3]]), atol=1e-4)


def test_scores_of_an_echoed_prompt_are_the_models():
    prompt = [random.Random(0).randrange(4, 260) for _ in range(50)]
    request = Request(prompt=prompt, most=0, echo=True, alternatives=3)
    for chunk in (1, 7, 128):
        ((text, ids, finish, said),) = run(Engine(MODEL, BYTES.decode, chunk=chunk), [request])
        with torch.no_grad():
            log_probs = MODEL(torch.tensor([prompt]))[0].log_softmax(-1)
        assert (text, ids, finish, [one.id for one in said]) == (BYTES.decode(prompt), [], "length", prompt)
        assert said[0].log_prob is None and said[0].likeliest == ()
        for t, one in enumerate(said[1:]):
            assert one.log_prob == pytest.approx(log_probs[t, one.id].item(), abs=1e-4)
            assert [i for i, _ in one.likeliest] == log_probs[t].topk(3).indices.tolist()


TOKEN_OF = {BYTES._surface[i]: i for i in range(4, 260)}


class Scripted(Small):
    """Says the bytes of a text and then the end, whatever it reads."""

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


def scripted(text, **request):
    return run(Engine(Scripted(text), BYTES.decode), [Request(prompt=[5], **request)])[0]


def test_characters_come_whole():
    text = "naïve 東京 😀 end"
    got = scripted(text.encode(), most=100, sampling=Sampling(temperature=0), alternatives=0)
    assert got[0] == text and got[2] == "stop"
    offsets = [said.offset for said in got[3]]
    assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] == len(text)
    assert len(offsets) == len(text.encode()) + 1  # the end token is one of them


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=3), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_no_half_characters_and_no_stop_strings(text, stops, most):
    raw = text.encode("utf-8", "ignore")
    got = scripted(raw, most=most, sampling=Sampling(temperature=0), stops=Stops(tuple(stops)), alternatives=0)
    whole = raw[:most].decode("utf-8", "replace")
    found = Stops(tuple(stops)).find(whole)
    assert got[0] == (whole if found is None else whole[: found[0]])
    assert got[2] == ("length" if found is None and len(raw) >= most else "stop")
    if found is not None:
        assert all(said.offset < len(got[0]) for said in got[3])


def test_stop_ends_the_work_at_once():
    got = scripted(b"one two three", most=50, sampling=Sampling(temperature=0), stops=Stops((" tw",)))
    assert got[0] == "one" and len(got[1]) == len("one tw")


def test_biases_and_penalties():
    def greedy(**more):
        return run(Engine(MODEL, BYTES.decode), [Request(prompt=[9, 9], most=12, sampling=Sampling(temperature=0), **more)])[0][1]

    plain = greedy()
    assert greedy(bias={plain[0]: -100.0})[0] != plain[0]
    assert greedy(bias={77: 100.0}) == [77] * 12
    assert len(set(greedy(bias={77: 30.0}, presence=100.0))) == 12
    heavy = greedy(bias={77: 60.0}, frequency=11.0)
    assert heavy.count(77) > 1 and heavy != [77] * 12


def test_bounds():
    engine = Engine(MODEL, BYTES.decode, rows=2, positions=100, waiting=3)
    for prompt, most, copies in (([5] * 500, 13, 1), ([5], 1, 3), ([5], 60, 2), ([260], 1, 1), ([-1], 1, 1)):
        with pytest.raises(NotSupported):
            engine.submit(Request(prompt=prompt, most=most), copies)
    with pytest.raises(NotSupported):
        engine.submit(Request(prompt=[5], bias={260: 1.0}))
    for _ in range(3):
        engine.submit(Request(prompt=[5] * 20, most=30, bias={2: -100.0}))
    with pytest.raises(Busy):
        engine.submit(Request(prompt=[5]))
    most = 0
    while engine.busy:
        engine.step()
        most = max(most, engine.running)
    assert most == 2
    with pytest.raises(NotSupported, match="eval"):
        Engine(Small().train(), BYTES.decode)


def test_running_rows_do_not_starve():
    """While a long prompt is read, rows that run get a token a step."""
    engine = Engine(MODEL, BYTES.decode, chunk=10)
    (first,) = engine.submit(Request(prompt=[5], most=200, bias={2: -100.0}))
    engine.step()
    (second,) = engine.submit(Request(prompt=[6] * 100, most=2))
    steps = 0
    while not second.ids:
        before = len(first.ids)
        engine.step()
        steps += 1
        assert len(first.ids) == before + 1
    assert steps == 10


def test_who_leaves_gives_the_place_back():
    engine = Engine(MODEL, BYTES.decode, rows=2, chunk=4)
    rows = [engine.submit(Request(prompt=[5] * 9, most=100, bias={2: -100.0}))[0] for _ in range(5)]
    for gone in (3, 0, 1):  # one that waits, one that is read, one that runs
        engine.step()
        engine.cancel(rows[gone])
    while engine.busy:
        engine.step()
    assert [row.finish for row in rows] == [None, None, "length", None, "length"]
    assert engine.running == engine.waiting == 0


class Broken(Small):
    def logits(self, x):
        return super().logits(x) * torch.nan


def test_a_model_of_nonsense_is_refused():
    engine = Engine(Broken(), BYTES.decode)
    engine.submit(Request(prompt=[5], sampling=Sampling(temperature=1)))
    with pytest.raises(NotSupported, match="not numbers"):
        engine.step()
    engine.clear()
    assert not engine.busy


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_looking_up_changes_nothing(temperature):
    """Answers with and without guesses; a model that repeats itself is guessed right often."""
    rng = random.Random(1)
    guessed = 0
    for _ in range(6):
        cycle = [rng.randrange(4, 260) for _ in range(5)]
        request = Request(
            prompt=cycle * 4, most=40, sampling=Sampling(temperature=temperature, seed=3), alternatives=2, bias={2: -100.0},
            frequency=rng.choice([0, 0.1]),
        )  # fmt: skip
        plain, looking = Engine(MODEL, BYTES.decode), Engine(MODEL, BYTES.decode, lookup=6)
        (one,), steps = run(plain, [request]), 0
        (row,) = looking.submit(request)
        said = []
        while looking.busy:
            steps += 1
            for piece in looking.step():
                said += piece.said
        close(one, (row.text, row.ids, row.finish, said))
        guessed += 40 - steps
    assert temperature or guessed > 0


def test_looking_up_is_refused_where_one_cannot_go_back():
    class Onward(Small):
        def begin(self, batch):
            state = super().begin(batch)
            state.before = ()
            state.move = lambda h: setattr(state, "h_BD", h)
            return state

    with pytest.raises(NotSupported, match="lookup"):
        Engine(Onward(), BYTES.decode, lookup=4)


def test_who_leaves_while_being_read_is_read_no_further():
    """The longest prompt goes: those behind it begin at once, and answer as they would alone."""
    long, short = Request(prompt=[5] * 400, most=2), Request(prompt=[6, 7, 8], most=5)
    engine = Engine(MODEL, BYTES.decode, chunk=16)
    (gone,), (stays,) = engine.submit(long), engine.submit(short)
    engine.step()
    assert not stays.ids
    engine.cancel(gone)
    engine.step()
    assert stays.ids and engine.running == 1
    while engine.busy:
        engine.step()
    close((stays.text, stays.ids, stays.finish, []), run(Engine(MODEL, BYTES.decode), [short])[0])


def test_who_leaves_beside_others_that_are_read():
    prompts = [[5] * 60, [6] * 50, [7] * 40]
    for leaves in range(3):
        engine = Engine(MODEL, BYTES.decode, chunk=40)
        rows = [engine.submit(Request(prompt=prompt, most=4))[0] for prompt in prompts]
        engine.step()
        engine.cancel(rows[leaves])
        while engine.busy:
            engine.step()
        for row in (row for n, row in enumerate(rows) if n != leaves):
            close((row.text, row.ids, row.finish, []), run(Engine(MODEL, BYTES.decode), [row.request])[0])


def test_the_coldest_temperature_takes_the_best():
    def said(temperature):
        return run(Engine(MODEL, BYTES.decode), [Request(prompt=[5], most=9, sampling=Sampling(temperature=temperature, top_p=0.9))])[0][1]

    assert said(5e-324) == said(1e-300) == said(1e-40) == said(0)
