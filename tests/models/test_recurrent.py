"""Recurrent translators against loops written out by hand, word by word and row by row."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from regard.attention import ConcatAttention, GeneralAttention
from regard.models import (
    Luong,
    LuongConfig,
    RNNsearch,
    RNNsearchConfig,
    Seq2Seq,
    Seq2SeqConfig,
    of_size,
)
from regard.models.recurrent import RecurrentEncoder, RecurrentStack, flipped

B, M, L, N, E, W = 3, 7, 5, 13, 6, 10
LENGTHS = (4, 7, 2)


def shaken(module):
    module = module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def batch():
    return torch.randint(N, (B, M)), torch.tensor(LENGTHS), torch.randint(N, (B, L))


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


def size(model):
    return sum(p.numel() for p in model.parameters())


# -- cells, against their formulas ---------------------------------------------------------------------------------------


def cell_by_hand(kind, layers, suffix, x, h, c):
    """One step of one layer, gate by gate."""
    w, u = getattr(layers, f"weight_ih_{suffix}"), getattr(layers, f"weight_hh_{suffix}")
    b, d = getattr(layers, f"bias_ih_{suffix}"), getattr(layers, f"bias_hh_{suffix}")
    size, sigmoid, tanh = u.shape[1], torch.sigmoid, torch.tanh
    gate = [
        (w[i * size : (i + 1) * size] @ x + b[i * size : (i + 1) * size], u[i * size : (i + 1) * size] @ h + d[i * size : (i + 1) * size])
        for i in range(len(w) // size)
    ]
    if kind == "rnn":
        return tanh(sum(gate[0])), c
    if kind == "lstm":
        i, f, g, o = (sum(part) for part in gate)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c
    r, z = sigmoid(sum(gate[0])), sigmoid(sum(gate[1]))
    n = tanh(gate[2][0] + r * gate[2][1])
    return (1 - z) * n + z * h, c


def read_by_hand(kind, encoder, words, reverse):
    """Annotations of one row, in source order, and the last h of the top layer's directions."""
    ways = 2 if encoder.layers.bidirectional else 1
    words = words.flip(0) if reverse else words
    xs = list(encoder.token(words))
    for layer in range(encoder.depth):
        sides, last = [], []
        for way in range(ways):
            h = c = torch.zeros(W, dtype=torch.float64)
            outs = []
            for x in xs if way == 0 else xs[::-1]:
                h, c = cell_by_hand(kind, encoder.layers, f"l{layer}" + ("_reverse" if way else ""), x, h, c)
                outs.append(h)
            sides.append(outs if way == 0 else outs[::-1])
            last.append(h)
        xs = [torch.cat(parts) for parts in zip(*sides, strict=True)]
    states = torch.stack(xs)
    return states.flip(0) if reverse else states, torch.cat(last)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_encoder_by_hand(kind, both, reverse):
    encoder = shaken(RecurrentEncoder(kind, N, E, W, depth=2, both=both, backwards=reverse))
    source, n, _ = batch()
    h_BMD, last = encoder(source, n)
    assert h_BMD.shape == (B, M, W * (1 + both)) and last[0].shape == (B, 2, W * (1 + both)) and len(last) == 1 + (kind == "lstm")
    for row, length in enumerate(LENGTHS):
        states, final = read_by_hand(kind, encoder, source[row, :length], reverse)
        close(h_BMD[row, :length], states)
        close(last[0][row, -1], final)
        assert not h_BMD[row, length:].any()


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_a_stack_whole_and_in_steps(kind):
    stack = shaken(RecurrentStack(kind, E, W, depth=3))
    x = torch.randn(B, L, E, dtype=torch.float64, requires_grad=True)
    hidden = tuple(torch.randn(B, 3, W, dtype=torch.float64, requires_grad=True) for _ in range(1 + (kind == "lstm")))
    whole, last = stack(x, hidden)
    now, steps = hidden, []
    for gates in stack.input_gates(x).unbind(1):
        h, now = stack.step(gates, now)
        steps.append(h)
    steps = torch.stack(steps, 1)
    close(steps, whole)
    close(now, last)
    cotangent = torch.randn_like(whole)
    wrt = (x, *hidden, *stack.parameters())
    close(torch.autograd.grad(steps, wrt, cotangent), torch.autograd.grad(whole, wrt, cotangent))


def test_how_cells_begin():
    stack = RecurrentStack("lstm", E, W, depth=2)
    for layer in range(2):
        _, forget, _, _ = (stack.layers._parameters[f"bias_ih_l{layer}"] + stack.layers._parameters[f"bias_hh_l{layer}"]).chunk(4)
        assert (forget == 1).all()
        for gate in stack.layers._parameters[f"weight_hh_l{layer}"].chunk(4):
            torch.testing.assert_close(gate @ gate.T, torch.eye(W))


def test_flipped():
    x = torch.tensor([[1, 2, 3, 0], [1, 2, 3, 4], [5, 9, 9, 9]])
    assert flipped(x, torch.tensor([3, 4, 1])).tolist() == [[3, 2, 1, 0], [4, 3, 2, 1], [5, 9, 9, 9]]


# -- whole models by hand ------------------------------------------------------------------------------------------------


def test_seq2seq_by_hand():
    config = Seq2SeqConfig(source_vocab_size=N, target_vocab_size=N, embedding=E, width=W, depth=1, cell="lstm")
    model, (source, n, target) = shaken(Seq2Seq(config)), batch()
    logits = model(source, n, target)
    for row, length in enumerate(LENGTHS):
        h = c = torch.zeros(W, dtype=torch.float64)
        for word in source[row, :length].flip(0):
            h, c = cell_by_hand("lstm", model.encoder.layers, "l0", model.encoder.token.weight[word], h, c)
        thought = h
        for t, word in enumerate(target[row]):
            h, c = cell_by_hand("lstm", model.decoder.layers, "l0", torch.cat([model.token.weight[word], thought]), h, c)
            close(logits[row, t], model.output.weight @ h + model.output.bias)


@pytest.mark.parametrize("output", ["current", "previous"])
@pytest.mark.parametrize("after", [False, True])
def test_rnnsearch_by_hand(after, output):
    A = 9
    config = RNNsearchConfig(
        source_vocab_size=N, target_vocab_size=N, embedding=E, width=W, alignment=A, maxout=8, reset_after=after, output_state=output
    )
    model, (source, n, target) = shaken(RNNsearch(config)), batch()
    logits, state = model(source, n, target), model.start(source, n)
    weights = torch.stack([model.step(token, state, want_weights=True).weights_BM for token in target.unbind(1)], 1)
    w_a, u_z, u_r = model.query_and_gates.weight.split((A, W, W))
    w_z, w_r, w_n = model.from_token.weight.chunk(3)
    b_z, b_r, b_n = model.from_token.bias.chunk(3)
    c_z, c_r, c_n = model.from_context.weight.chunk(3)
    for row, length in enumerate(LENGTHS):
        h, _ = read_by_hand("gru", model.encoder, source[row, :length], False)
        s = torch.tanh(model.first.weight @ h[0, W:] + model.first.bias)  # the way back, at the first word
        for t, word in enumerate(target[row]):
            scores = torch.stack([model.attention.u_HK[0] @ torch.tanh(w_a @ s + model.key.weight @ h_j) for h_j in h])
            a = scores.softmax(0)
            c, e, old = a @ h, model.token.weight[word], s
            z = torch.sigmoid(w_z @ e + b_z + u_z @ s + c_z @ c)
            r = torch.sigmoid(w_r @ e + b_r + u_r @ s + c_r @ c)
            recurrent = r * (model.recur.weight @ s) if after else model.recur.weight @ (r * s)
            s = (1 - z) * s + z * torch.tanh(w_n @ e + b_n + recurrent + c_n @ c)
            pairs = model.deep.weight @ torch.cat([s if output == "current" else old, e, c]) + model.deep.bias
            spoken = torch.stack([torch.maximum(pairs[2 * i], pairs[2 * i + 1]) for i in range(8)])
            close(logits[row, t], model.output.weight @ spoken + model.output.bias)
            close(weights[row, t, :length], a)


@pytest.mark.parametrize(
    "score", ["dot", "general", "concat", "location", "local_monotonic", "local_predictive", "local_predictive_general"]
)
@pytest.mark.parametrize("feeding", [False, True])
def test_luong_by_hand(score, feeding):
    D = 1
    config = LuongConfig(
        source_vocab_size=N,
        target_vocab_size=N,
        embedding=E,
        width=W,
        depth=1,
        attention=score,
        feeding=feeding,
        radius=D,
        max_length=9,
        cell="gru",
    )
    model, (source, n, target) = shaken(Luong(config)), batch()
    logits, attention = model(source, n, target), model.attention
    for row, length in enumerate(LENGTHS):
        memory, h = read_by_hand("gru", model.encoder, source[row, :length], True)
        made = torch.zeros(W, dtype=torch.float64)
        for t, word in enumerate(target[row]):
            layers = model.decoder.layers
            if feeding:  # [E y; h̃] through one matrix
                wide = nn.GRU(E + W, W).double()
                with torch.no_grad():
                    wide.weight_ih_l0.copy_(torch.cat([layers.weight_ih_l0, model.feed.weight], 1))
                    for name in ("weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
                        getattr(wide, name).copy_(getattr(layers, name))
                h, _ = cell_by_hand("gru", wide, "l0", torch.cat([model.token.weight[word], made]), h, None)
            else:
                h, _ = cell_by_hand("gru", layers, "l0", model.token.weight[word], h, None)
            at, fade, seen = torch.arange(length), 1.0, torch.ones(length, dtype=torch.bool)
            if score == "general":
                scores = (h @ attention.w_HKK[0]) @ memory.T
            elif score == "local_predictive_general":
                scores = (h @ attention.score_HKK[0]) @ memory.T
            elif score == "concat":
                both = torch.cat([attention.w_q_HKA[0], attention.w_k_HKA[0]])  # W over [h; h̄]
                scores = torch.stack([attention.u_HA[0] @ torch.tanh(torch.cat([h, m]) @ both) for m in memory])
            elif score == "location":
                scores = (h @ attention.w_HKN[0])[:length]
            else:
                scores = memory @ h
            if score == "local_monotonic":
                seen = (at - min(t, length - 1)).abs() <= D
            if score.startswith("local_predictive"):  # from h itself, whatever the score does with it
                place = length * torch.sigmoid(attention.u_HK[0] @ torch.tanh(h @ attention.w_HKK[0]))
                seen, fade = (at - place).abs() <= D, torch.exp(-((at - place) ** 2) / (2 * (D / 2) ** 2))
            context = (scores.masked_fill(~seen, -torch.inf).softmax(0) * fade) @ memory
            made = torch.tanh(model.combine.weight @ torch.cat([context, h]))
            close(logits[row, t], model.output.weight @ made + model.output.bias)


def test_settings_reach_their_parts():
    config = LuongConfig(source_vocab_size=N, target_vocab_size=N, radius=3)
    assert isinstance(Luong(config).attention, GeneralAttention)
    assert isinstance(Luong(replace(config, attention="concat")).attention, ConcatAttention)
    local = Luong(replace(config, attention="local_predictive")).attention
    assert (local.radius, local.sigma) == (3, 1.5)
    assert Luong(replace(config, attention="local_predictive_general")).attention.radius == 3
    assert Luong(replace(config, attention="local_monotonic")).attention.radius == 3


# -- sizes of the papers -------------------------------------------------------------------------------------------------


def test_seq2seq_has_the_papers_384_million():
    with torch.device("meta"):
        count = size(of_size("seq2seq-paper"))
    tables, recurrent = 1000 * (160_000 + 80_000 + 80_000), 2 * 4 * 8 * 1000**2  # "384M, of which 64M are pure recurrent connections"
    biases = 2 * 4 * 8 * 1000 + 80_000  # PyTorch has two a gate
    assert tables + recurrent == 384_000_000
    assert count == tables + recurrent + biases


def test_paper_sizes_of_the_attentive_ones():
    with torch.device("meta"):
        ours, theirs = size(of_size("rnnsearch-paper")), size(of_size("luong-paper"))
    V, m, n, a, half = 30_000, 620, 1000, 1000, 500
    encoder = V * m + 2 * (3 * n * (m + n) + 6 * n)
    decoder = V * m + 3 * n * (m + 1) + 3 * n * n + 3 * n * 2 * n + (n * n + n)
    look, speak = a * n + a * 2 * n + a, 2 * half * (n + m + 2 * n + 1) + V * (half + 1)
    assert ours == encoder + decoder + look + speak
    V = 50_000
    stacks, feed = 2 * 4 * (8 * n * n + 8 * n), 4 * n * n
    assert theirs == 2 * V * n + stacks + feed + n * n + 2 * n * n + V * (n + 1)
