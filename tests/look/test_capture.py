"""Capture: what is seen is what was used, and seeing changes nothing."""

import warnings
from dataclasses import replace

import pytest
import torch
from tests.look.conftest import WIDTH, B, H, L, Layer, Stack
from torch import nn
from torch.utils.checkpoint import checkpoint

from regard.attention import Attention, Facts, GaussianWindow, LocalMonotonicAttention, Paper, SoftmaxAttention, State
from regard.attention.helpers import average
from regard.errors import CaptureNotSupported, DtypeError, RegardError, ShapeError, UnknownName
from regard.kernels import Bias
from regard.look import capture
from regard.patterns import causal, full, keep, lengths, local_causal, per_head, tokens, window

NAMES = [f"blocks.{n}.attention" for n in range(3)]


class Random(Attention):
    """Every call draws its own features: capture must draw the same again, and leave no trace."""

    facts = Facts(name="random", paper=Paper("", 0, ""), formula="", time="", memory="", rows="joint")

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def _weights(self, q_BLHK, k_BMHK, call):
        mix = torch.randn(q_BLHK.shape[-1], k_BMHK.shape[-1], generator=self.generator) + torch.rand(())  # own dice and the common ones
        scores = torch.einsum("blhk,kc,bmhc->bhlm", q_BLHK, mix, k_BMHK)
        return scores.masked_fill(~call.mask(), -torch.inf).softmax(-1)


class Slopes(Bias):
    def __init__(self):
        self.tensors = (torch.tensor([0.5, 0.25, 0.125], requires_grad=True),)

    def tile(self, i, j, *tensors):
        return -tensors[0][:, None, None] * (i[:, None] - j).abs()


def run(model, x, **given):
    model.zero_grad()
    out = model(x, **given)
    out.square().sum().backward()
    return [out.detach().clone(), *(p.grad.clone() for p in model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize(
    "make", [SoftmaxAttention, lambda: SoftmaxAttention(dropout=0.4, sinks=H, softcap=3.0), Random], ids=["plain", "all", "random"]
)
@pytest.mark.parametrize("training", [True, False])
def test_nothing_changes(make, training, x):
    def twice(**asked):
        torch.manual_seed(3)
        model = Stack(make=make).train(training)
        if not asked:
            return [*run(model, x), *run(model, x)]
        with capture(model, **asked) as maps:
            first = run(model, x)
        assert len(maps.all) == 3
        return [*first, *run(model, x)]  # the second run draws what it would have drawn

    plain = twice()
    for asked in ({"chunk": 1}, {"rows": [1, 4], "heads": 1}):
        assert all(torch.equal(a, b) for a, b in zip(plain, twice(**asked), strict=True))


@pytest.mark.parametrize(
    "pattern", [full, causal, causal & (window(2) | tokens(0)), causal & lengths([7, 4]), per_head(full, causal, window(1))], ids=str
)
@pytest.mark.parametrize("bias", [None, Slopes(), torch.linspace(-1, 1, L * L).view(L, L)], ids=["no bias", "slopes", "matrix"])
def test_weights_are_the_definition_and_make_the_output(model, x, pattern, bias):
    with capture(model, dtype=torch.float64) as maps:
        model(x, pattern=pattern, bias=bias)
    for name, block in zip(NAMES, model.blocks, strict=True):
        (m,) = maps[name]
        q, k, v, out = block.seen
        torch.testing.assert_close(m.weights_BHLM.float(), block.attention.weights(q, k, pattern, bias).detach())
        torch.testing.assert_close(average(m.weights_BHLM, v.double()).float(), out, rtol=1e-4, atol=1e-5)
        assert m.normalised and m.mechanism == "softmax" and m.pattern == str(pattern) and not m.weights_BHLM.requires_grad


def test_a_random_mechanism_shows_what_it_drew(x):
    model = Stack(make=Random)
    with capture(model, chunk=1) as maps:  # a row at a time, every row from the same draw
        model(x)
        model(x)
    block = model.blocks[1]
    torch.testing.assert_close(average(maps[NAMES[1]][1].weights_BHLM, block.seen[2]), block.seen[3])
    assert not torch.allclose(maps[NAMES[1]][0].weights_BHLM, maps[NAMES[1]][1].weights_BHLM)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, [0, 1, 2]), ("blocks.1.attention", [1]), ("blocks.1", [1]), ("blocks.[02].*", [0, 2]), (["blocks.2", "blocks.0"], [0, 2]),
        (1, [1]), (-1, [2]), ([0, -1], [0, 2]), (lambda name: "1" in name, [1]),
    ],
)  # fmt: skip
def test_choice_of_layers(model, x, asked, found):
    with capture(model, layers=asked) as maps:
        model(x)
    assert maps.layers == list(maps) == [NAMES[n] for n in found] and len(maps) == len(found)


def test_numbers_of_layers_follow_the_first_call(x):
    class Backwards(Stack):
        def forward(self, x):
            for block in reversed(self.blocks):
                x = block(x)
            return x

    with capture(model := Backwards(), layers=0) as maps:
        model(x)
    assert maps.layers == [NAMES[2]]
    with pytest.raises(CaptureNotSupported, match="not called"):
        maps[NAMES[0]]


@pytest.mark.parametrize(("asked", "found"), [(1, [1]), (-1, [2]), ([2, 0], [0, 2]), (slice(1, None), [1, 2]), (None, [0, 1, 2])])
def test_choice_of_heads(model, x, asked, found):
    with capture(model) as whole:
        model(x)
    with capture(model, heads=asked) as maps:
        model(x)
    (m,) = maps[NAMES[0]]
    assert m.heads == tuple(found)
    assert torch.equal(m.weights_BHLM, whole[NAMES[0]][0].weights_BHLM[:, found])


@pytest.mark.parametrize(
    ("asked", "found"), [(3, [3]), (-1, [6]), ([-2, 0, 5], [0, 5]), (slice(None, None, 3), [0, 3, 6]), (range(2), [0, 1])]
)
def test_choice_of_rows(model, x, asked, found):
    with capture(model) as whole:
        model(x)
    with capture(model, rows=asked) as maps:
        model(x)
    (m,) = maps[NAMES[1]]
    assert m.rows == tuple(found)
    torch.testing.assert_close(m.weights_BHLM, whole[NAMES[1]][0].weights_BHLM[:, :, found])


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"layers": "block.0.attention"}, UnknownName, "did you mean 'blocks.0.attention'"),
        ({"layers": "zzz"}, UnknownName, "blocks.2.attention"),
        ({"layers": 3}, UnknownName, "2: blocks.2.attention"),
        ({"layers": lambda name: False}, UnknownName, "lambda"),
        ({"heads": 3}, ShapeError, "3 heads, 0 … 2; there is no 3"),
        ({"heads": [0, -4]}, ShapeError, "no -4"),
        ({"rows": [1, 7]}, ShapeError, "7 rows, 0 … 6; there is no 7"),
        ({"rows": slice(9, None)}, ShapeError, "chooses none"),
        ({"rows": []}, ShapeError, "chooses none"),
        ({"limit": 100}, CaptureNotSupported, "layers=, heads= or rows="),
        ({"dtype": torch.int8}, DtypeError, "int8"),
        ({"tokens": ["a", "b"]}, ShapeError, "2 labels"),
    ],
)
def test_refusals_say_what_there_is(model, x, asked, error, says):
    with pytest.raises(error, match=says.replace("…", ".")), capture(model, **asked):
        model(x)
    assert hooks(model) == 0


def hooks(model) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_the_limit_is_on_all_that_is_kept(model, x):
    one = B * H * L * L * 4
    with pytest.raises(CaptureNotSupported, match="of 2 calls"), capture(model, limit=2 * one):
        model(x)
    with capture(model, limit=3 * one) as maps:
        model(x)
    assert maps.nbytes == 3 * one


class Mute(Attention):
    facts = Facts(name="mute", paper=Paper("", 0, ""), formula="", time="", memory="")

    def _forward(self, q_BLHK, k_BMHK, v_BMHV, call):
        return v_BMHV


class Whole(SoftmaxAttention):
    facts = replace(SoftmaxAttention.facts, rows="joint")  # its rows come only all together


def test_mechanisms_without_weights_are_refused_by_name(x):
    model = Stack()
    model.blocks[1].attention = Mute()
    with (
        pytest.raises(CaptureNotSupported, match=r"Mute has no weights.*These have: blocks.0.attention, blocks.2.attention"),
        capture(model),
    ):
        model(x)
    with capture(model, layers=["blocks.0", "blocks.2"]) as maps:
        model(x)
    assert len(maps) == 2
    with pytest.raises(CaptureNotSupported, match="holds no"), capture(nn.Linear(2, 2)):
        pass


def test_a_mechanism_of_whole_matrices_is_called_once_or_refused(x):
    model = Stack(make=Whole)
    with capture(model, rows=[2, 5], chunk=1) as maps:
        model(x)
    with capture(plain := Stack(), rows=[2, 5]) as same:
        plain.load_state_dict(model.state_dict())
        plain(x)
    torch.testing.assert_close(maps[NAMES[2]][0].weights_BHLM, same[NAMES[2]][0].weights_BHLM)
    with pytest.raises(CaptureNotSupported, match="only from its whole 7 × 7 matrix"), capture(model, rows=1, limit=B * H * L * 4):
        model(x)


def test_work_is_bounded_by_the_chunk(monkeypatch):
    length, chunk = 4096, 2**20
    model, x = Stack(1, width=4, heads=2), torch.randn(1, length, 4)
    largest, definition = [], SoftmaxAttention._weights

    def watched(self, *args):
        part = definition(self, *args)
        largest.append(part.nbytes)
        return part

    monkeypatch.setattr(SoftmaxAttention, "_weights", watched)
    with capture(model, rows=range(0, 80, 2), heads=1, chunk=chunk) as maps, torch.no_grad():
        model(x)
    (m,) = maps["blocks.0.attention"]
    assert "blocks.0" not in maps and maps.get("blocks.0") is None
    assert m.weights_BHLM.nbytes == 40 * length * 4
    assert len(largest) > 1 and max(largest) * 5 <= chunk


def test_kept_as_half(model, x):
    with capture(model, dtype=torch.float16) as maps:
        model(x)
    (m,) = maps[NAMES[0]]
    assert m.weights_BHLM.dtype == torch.float16 and m.normalised
    assert maps.nbytes == 3 * B * H * L * L * 2


def test_sinks_take_weight_and_it_is_said(x):
    with capture(model := Stack(make=lambda: SoftmaxAttention(sinks=H))) as maps:
        model(x)
    assert not maps.all[0].normalised


# -- step by step -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [causal, local_causal(2), causal & (window(2) | tokens(0))], ids=str)
@pytest.mark.parametrize("prompt", [1, 4])
def test_steps_joined_are_the_one_pass(pattern, prompt):
    length = 23  # the rolling caches forget several times
    model, x = Stack(), torch.randn(B, length, WIDTH)
    words = [f"w{n}" for n in range(length)]
    with torch.no_grad(), capture(model) as whole:
        model(x, pattern=pattern)
    states = [block.attention.start(B, pattern) for block in model.blocks]
    with torch.no_grad(), capture(model, tokens=words) as maps:
        model(x[:, :prompt], pattern=pattern, states=states)
        for n in range(prompt, length):
            model(x[:, n : n + 1], pattern=pattern, states=states)
    for name in NAMES:
        joined = maps.join_calls(name)
        assert joined.rows == joined.columns == tuple(range(length)) and joined.normalised and joined.square
        torch.testing.assert_close(joined.weights_BHLM, whole[name][0].weights_BHLM, rtol=1e-4, atol=1e-5)
        assert joined.labels() == (words, words)
        assert maps.view(name).rows == joined.rows
    steps = maps[NAMES[0]]
    assert [m.rows[-1] for m in steps] == list(range(prompt - 1, length)) and steps[-1].run == length - prompt
    if pattern.reach() is not None:
        assert max(len(m.columns) for m in steps) < length  # keys were forgotten


def test_two_streams_stay_apart_and_reset_rows_forget(x):
    model = Stack(1)
    name, block = NAMES[0], model.blocks[0]
    with torch.no_grad(), capture(model) as maps:
        for _ in range(2):
            state = block.attention.start(B)
            model(x[:, :3], states=[state])
            state.reset(torch.tensor([1]))
            model(x[:, 3:4], states=[state])
    assert [m.stream for m in maps[name]] == [0, 0, 1, 1]
    assert torch.equal(maps.join_calls(name, 0).weights_BHLM, maps.join_calls(name).weights_BHLM)
    last = maps[name][-1].weights_BHLM
    assert last[1, :, 0].count_nonzero() == H and last[0, :, 0].count_nonzero() == 4 * H
    torch.testing.assert_close(average(last[1:], torch.cat([block.seen[2][1:]] * 4, 1)), block.seen[3][1:])
    with pytest.raises(UnknownName):
        maps.join_calls(name, 7)


def test_a_state_without_keys_is_refused(x):
    class Summing(SoftmaxAttention):
        facts = replace(SoftmaxAttention.facts, state=State)

        def _forward(self, q_BLHK, k_BMHK, v_BMHV, call):
            return v_BMHV

    with pytest.raises(CaptureNotSupported, match=r"does not keep its keys.*without a state"), capture(model := Stack(1, make=Summing)):
        model(x, states=[State(B)])


@pytest.mark.parametrize("kind", [GaussianWindow, LocalMonotonicAttention])
def test_steps_over_fixed_keys_joined_are_the_one_pass(kind):
    """A StepState has moved on when capture sees the call: it sees the state as it was before."""
    torch.manual_seed(0)
    attention = kind.sized(heads=1, head_dim=5, length=9)
    q_BLHK, k_BMHK, state = torch.randn(2, 6, 1, 5), torch.randn(2, 9, 1, 5), attention.start_cross(2)
    with capture(attention) as maps:
        steps = [attention(q_BLHK[:, n : n + 1], k_BMHK, k_BMHK, state=state) for n in range(6)]
    found_BHLM = maps.join_calls(maps.layers[0]).weights_BHLM
    torch.testing.assert_close(found_BHLM, attention.weights(q_BLHK, k_BMHK).detach())
    torch.testing.assert_close(average(found_BHLM, k_BMHK), torch.cat(steps, 1).detach())
    assert state.length == 6


def test_a_decoder_that_looks_once_a_step(x):
    layer = Layer(SoftmaxAttention())
    memory = torch.randn(B, 5, WIDTH)
    with torch.no_grad(), capture(layer, tokens=list("abcde")) as maps:
        for n in range(L):
            layer(x[:, n : n + 1], memory, full)
    with torch.no_grad(), capture(layer) as whole:
        layer(x, memory, full)
    joined = maps.view("attention")
    assert joined.rows == tuple(range(L)) and joined.labels()[1] == list("abcde")
    torch.testing.assert_close(joined.weights_BHLM, whole["attention"][0].weights_BHLM)


# -- around ------------------------------------------------------------------------------------------------------------


def test_hooks_go_even_after_an_exception(model, x):
    with pytest.raises(ZeroDivisionError), capture(model):
        model(x)
        1 / 0  # noqa: B018
    assert hooks(model) == 0
    with pytest.raises(RegardError), capture(model):
        model(x, pattern=keep(torch.ones(2, 2, dtype=torch.bool)))
    assert hooks(model) == 0


def test_nested_captures(model, x):
    with capture(model, layers=0) as outer:
        with capture(model, heads=1) as inner:
            model(x)
        model(x)
    assert len(outer.all) == 2 and len(inner.all) == 3 and inner.all[0].heads == (1,)
    assert [m.run for m in outer.all] == [0, 1] and [m.call for m in outer.all] == [0, 1]


def test_a_mechanism_alone_and_a_shared_one(x):
    attention, q = SoftmaxAttention(), torch.randn(1, 4, 2, 3)
    with capture(attention) as maps:
        attention(q, q, v_BMHV=q, pattern=causal)
    assert maps.layers == ["SoftmaxAttention"]
    shared = Stack()
    for block in shared.blocks:
        block.attention = attention
    with capture(shared) as maps:
        shared(x)
    assert [m.call for m in maps[NAMES[0]]] == [0, 1, 2]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_is_seen_once(model, x, reentrant):
    x.requires_grad_()
    with capture(model) as maps:
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert len(maps.all) == 3


def test_autocast_does_not_touch_the_definition():
    class Through(SoftmaxAttention):  # no product of its own: bfloat16 ends the process on some machines
        def _forward(self, q_BLHK, k_BMHK, v_BMHV, call):
            return v_BMHV

    q, attention = torch.randn(1, 5, 2, 4), Through()
    with capture(attention) as maps, torch.autocast("cpu", torch.bfloat16):
        attention(q, q, q)
    assert torch.equal(maps.all[0].weights_BHLM, attention.weights(q, q))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "inside"])
def test_compiled(model, x, when):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.no_grad():
            plain = model(x)
            compiled = torch.compile(model, backend="eager")
            if when == "before":
                compiled(x)
            with capture(compiled) as maps:
                out = compiled(x)
            after = compiled(x)
    assert maps.layers == NAMES
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(after, plain)
    assert len(maps.all) == 3


def test_labels_from_tokens(model, x):
    words = ["the", "animal", "did", "not", "cross", "the", "street"]
    with capture(model, rows=[1, -1], tokens=words) as maps:
        model(x)
    assert maps.all[0].labels() == (["animal", "street"], words)
    with capture(model, tokens=[words, words[:4]]) as maps:
        model(x, pattern=causal & lengths([7, 4]))
    assert maps.all[0].labels(1)[1] == [*words[:4], "", "", ""]
