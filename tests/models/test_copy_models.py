"""Models that copy: the distribution over the extended vocabulary, its limits, padding, decoding step by step, coverage."""

import pytest
import torch

from regard.decode import Beam, translate
from regard.errors import ShapeError
from regard.models import (
    MODELS,
    CopyModel,
    CopyOutputs,
    PointerGeneratorConfig,
    PointerTransformerConfig,
    build,
    config_of,
    coverage_before,
    coverage_loss,
    of_size,
)

V, UNKNOWN, B, M, L = 13, 3, 3, 7, 5  # all different: a swapped axis cannot pass by luck
LENGTHS = (4, 7, 2)
CONFIGS = {
    "pointer_generator": PointerGeneratorConfig(vocab_size=V, embedding=6, width=8),
    "pointer_transformer": PointerTransformerConfig(vocab_size=V, width=12, heads=3, depth=(1, 2), hidden=14, max_length=11),
}
every = pytest.mark.parametrize("name", CONFIGS)


def made(name, dtype=torch.float64, **settings):
    """A model whose every parameter matters."""
    model = build(name, vars(CONFIGS[name]) | settings).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def batch():
    """Rows with no, two and one words outside the vocabulary, one of them twice; the target repeats such a word."""
    source = torch.tensor([[5, 9, 5, 2, 0, 0, 0], [4, 13, 6, 14, 13, 7, 2], [13, 2, 0, 0, 0, 0, 0]])
    return source, torch.tensor(LENGTHS), torch.tensor([[1, 5, 9, 4, 8], [1, 13, 14, 6, 13], [1, 13, 4, 7, 3]])


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def naive(model, found, source, n):
    """The definition, word by word and position by position, in probabilities."""
    size = max(V, int(source.max()) + 1)
    vocab, gate, weights = model.logits(found.x_BLD).softmax(-1), found.gate_BL.sigmoid(), found.log_weights_BLM.exp()
    whole = torch.zeros(*found.gate_BL.shape, size, dtype=torch.float64)
    for b in range(len(source)):
        for t in range(whole.shape[1]):
            for w in range(V):
                whole[b, t, w] += gate[b, t] * vocab[b, t, w]
            for i in range(int(n[b])):
                whole[b, t, source[b, i]] += (1 - gate[b, t]) * weights[b, t, i]
    return whole


def test_every_model_that_copies_is_tested_here():
    assert {model.facts.name for model in MODELS if issubclass(model, CopyModel)} == set(CONFIGS)


# -- the distribution --------------------------------------------------------------------------------------------------


@every
@torch.no_grad()
def test_the_distribution_is_the_definition_and_sums_to_one(name):
    model, (source, n, target) = made(name), batch()
    log_prob = model(source, n, target)
    assert log_prob.shape == (B, L, V + 2)
    close(log_prob.exp().sum(-1), torch.ones(B, L, dtype=torch.float64))
    close(log_prob.exp(), naive(model, model.outputs(source, n, target), source, n))
    assert (log_prob.exp()[0, :, V:] == 0).all() and (log_prob.exp()[2, :, V + 1] == 0).all()  # words of other rows


@every
def test_the_loss_has_the_values_and_the_gradients_of_the_distribution(name):
    model, (source, n, target) = made(name), batch()
    wanted = torch.tensor([[5, 9, 4, 8, 2], [13, 14, 6, 13, 2], [13, 4, 7, 3, 2]])
    found = model.outputs(source, n, target)
    short, whole = (
        model.target_log_probs(found, source, wanted),
        model.log_probs(found, source, V + 2).gather(-1, wanted[..., None])[..., 0],
    )
    close(short, whole)
    gradients = [torch.autograd.grad(x.sum(), list(model.parameters()), retain_graph=True, allow_unused=True) for x in (short, whole)]
    for one, two in zip(*gradients, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            close(one, two)


@every
@torch.no_grad()
def test_limits_of_p_gen(name):
    model, (source, n, target) = made(name), batch()
    found = model.outputs(source, n, target)
    generated = model.log_probs(found._replace(gate_BL=torch.full((B, L), 1e4)), source, V + 2).exp()
    close(generated[..., :V], model.logits(found.x_BLD).softmax(-1).double())
    assert (generated[..., V:] == 0).all()
    copied = model.log_probs(found._replace(gate_BL=torch.full((B, L), -1e4)), source, V + 2).exp()
    weights = found.log_weights_BLM.exp()
    close(copied[0, :, 5], weights[0, :, 0] + weights[0, :, 2])  # a word that occurs twice
    close(copied[1, :, 13], weights[1, :, 1] + weights[1, :, 4])
    assert (copied[0, :, [4, 6, 7, 8]] == 0).all()


@pytest.mark.parametrize("gate", [-1e4, -200.0, 200.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_nan_when_p_gen_saturates(gate, dtype):
    """The reference is in the source or not, in the vocabulary or not, and has hardly any attention."""
    model, source = made("pointer_generator", dtype), torch.tensor([[5, 13, 6, 2]])
    scores = torch.tensor([[[0.0, -300.0, 400.0, 0.0]]], dtype=dtype, requires_grad=True)
    gate_BL = torch.tensor([[gate]], dtype=dtype, requires_grad=True)
    x = torch.randn(1, 1, 8, dtype=dtype, requires_grad=True)
    found = CopyOutputs(x, gate_BL, scores.log_softmax(-1))
    for wanted in (5, 13, 6, 7):
        log_p = model.target_log_probs(found, source, torch.tensor([[wanted]]))
        whole = model.log_probs(found, source, V + 1)[..., wanted]
        for value in (log_p, whole):
            assert torch.isfinite(value).all()
            gradients = torch.autograd.grad(value.sum(), (scores, gate_BL, x), retain_graph=True)
            assert all(torch.isfinite(gradient).all() for gradient in gradients)


@torch.no_grad()
def test_without_a_pointer_nothing_is_copied():
    model, (source, n, target) = made("pointer_generator", pointer=False), batch()
    log_prob = model(source, n, target)
    assert log_prob.shape == (B, L, V)
    close(log_prob, model.logits(model.outputs(source, n, target).x_BLD).log_softmax(-1).double())
    wanted = torch.full((B, L), V + 1)
    close(model.target_log_probs(model.outputs(source, n, target), source, wanted), log_prob[..., UNKNOWN])


@every
@torch.no_grad()
def test_words_outside_the_vocabulary_are_read_as_unknown(name):
    """Which of them it is decides what is copied, and nothing else."""
    model, (source, n, target) = made(name), batch()
    found, other = model.outputs(source, n, target), model.outputs(source.clamp(max=V - 1), n, target.clamp(max=V - 1))
    unknown = model.outputs(source.masked_fill(source >= V, UNKNOWN), n, target.masked_fill(target >= V, UNKNOWN))
    assert all(torch.equal(a, b) for a, b in zip(found, unknown, strict=True)) and not torch.allclose(found.gate_BL, other.gate_BL)


# -- padding, steps, beams ---------------------------------------------------------------------------------------------


@every
@torch.no_grad()
def test_a_batch_is_its_rows_one_by_one(name):
    model, (source, n, target) = made(name), batch()
    whole, found = model(source, n, target), model.outputs(source, n, target)
    loss = model.target_log_probs(found, source, target)
    for row, length in enumerate(LENGTHS):
        one, alone = slice(row, row + 1), source[row : row + 1, :length]
        log_prob = model(alone, n[one], target[one])
        close(whole[one, :, : log_prob.shape[-1]].exp(), log_prob.exp())
        close(loss[one], model.target_log_probs(model.outputs(alone, n[one], target[one]), alone, target[one]))
        weights, alone_weights = found.log_weights_BLM[one].exp(), model.outputs(alone, n[one], target[one]).log_weights_BLM.exp()
        real = torch.ones(1, L, dtype=torch.bool)
        close(coverage_loss(weights, real), coverage_loss(alone_weights, real))


@every
@torch.no_grad()
def test_teacher_forcing_is_step_by_step(name):
    model, (source, n, target) = made(name), batch()
    whole, state, weights = model(source, n, target), model.start(source, n), []
    for t, token in enumerate(target.unbind(1)):
        step = model.step(token, state, want_weights=True)
        close(step.logits_BN, whole[:, t])
        weights.append(step.weights_BM)
    close(torch.stack(weights, 1), model.outputs(source, n, target).log_weights_BLM.exp())
    assert state.length == L and state.batch == B
    if name == "pointer_generator":  # the coverage of decoding is that of training
        close(state.now["coverage"], coverage_before(torch.stack([*weights, weights[0]], 1))[:, -1])


@every
@torch.no_grad()
def test_states_follow_beams_and_join(name):
    model, (source, n, target) = made(name), batch()
    whole, rows = model(source, n, target), torch.tensor([2, 0, 0, 1])
    state = model.start(source, n)
    for t in range(2):
        model.step(target[:, t], state)
    state = state.reorder(rows)
    close(model.step(target[rows, 2], state).logits_BN, whole[rows, 2])
    ahead, behind = model.start(source[1:2], n[1:2]), model.start(source[[0, 2], :4], n[[0, 2]])
    model.step(target[1:2, 0], ahead)
    joined = model.step(torch.stack([target[1, 1], target[0, 0], target[2, 0]]), ahead.join(behind)).logits_BN
    close(joined.exp(), torch.stack([whole[1, 1], whole[0, 0], whole[2, 0]]).exp())


@every
@pytest.mark.parametrize("size", [1, 3])
@torch.no_grad()
def test_decoding_in_a_batch_is_decoding_alone(name, size):
    torch.manual_seed(4)
    model, (source, _, _) = made(name), batch()
    sources = [row[:length].tolist() for row, length in zip(source, LENGTHS, strict=True)]
    together = translate(model, sources, Beam(size=size, max_tokens=6), want_weights=True)
    for one, found in zip(sources, together, strict=True):
        (alone,) = translate(model, [one], Beam(size=size, max_tokens=6), want_weights=True)
        assert found[0].ids == alone[0].ids and found[0].score == pytest.approx(alone[0].score, abs=1e-6)
        torch.testing.assert_close(found[0].weights_LM, alone[0].weights_LM, atol=1e-6, rtol=1e-6)
        ids = torch.tensor([[1, *found[0].ids]])
        log_p = (
            model(torch.tensor([one]), torch.tensor([len(one)]), ids).log_softmax(-1)[0].gather(-1, torch.tensor([[*found[0].ids, 2]]).T)
        )
        assert found[0].log_prob == pytest.approx(float(log_p.sum()), abs=1e-6)  # coverage while decoding is that of training


# -- coverage ----------------------------------------------------------------------------------------------------------


def test_coverage_by_hand():
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.2, 0.0, 0.8], [0.9, 0.1, 0.0]]])
    close(coverage_before(weights), torch.tensor([[[0.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.7, 0.5, 0.8]]]), 1e-6)
    assert float(coverage_loss(weights, torch.tensor([[True, True, True]]))) == pytest.approx(0.2 + 0.7 + 0.1)
    assert float(coverage_loss(weights, torch.tensor([[True, True, False]]))) == pytest.approx(0.2)


def test_gradients_of_the_coverage_loss():
    scores, real = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True), torch.tensor([[True] * 4, [True, True, False, False]])
    assert torch.autograd.gradcheck(lambda x: coverage_loss(x.softmax(-1), real), scores)


def test_the_score_sees_the_coverage():
    blind, model = made("pointer_generator", coverage=False), made("pointer_generator")
    assert blind.covered is None and model.covered is not None
    source, n, target = batch()
    before = model.outputs(source, n, target)
    with torch.no_grad():
        model.covered.zero_()
    after = model.outputs(source, n, target)
    close(before.log_weights_BLM[:, 0], after.log_weights_BLM[:, 0])  # nothing has been covered yet
    assert not torch.allclose(before.log_weights_BLM[:, 1:], after.log_weights_BLM[:, 1:])


# -- configs -----------------------------------------------------------------------------------------------------------


def test_the_size_of_the_paper():
    """21,499,600 parameters, 1,153 of the pointer, 512 of coverage; PyTorch has a second bias in each of three LSTMs."""
    with torch.device("meta"):
        sizes = [
            sum(p.numel() for p in of_size("pointer-generator-paper", **some).parameters())
            for some in ({"pointer": False, "coverage": False}, {"coverage": False}, {})
        ]
    assert sizes[0] - 3 * 4 * 256 == 21_499_600 and sizes[1] - sizes[0] == 1153 and sizes[2] - sizes[1] == 512


@every
def test_a_config_comes_back(name):
    model, (source, n, target) = made(name), batch()
    again = build(*config_of(model)).double().eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(source, n, target), model(source, n, target))
    with pytest.raises(ShapeError, match="one length per row"):
        model(source, n[:2], target)


@every
def test_bfloat16(name):
    model, (source, n, target) = made(name, torch.float32), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model.outputs(source, n, target)
        log_p = model.target_log_probs(found, source, target)
        step = model.step(target[:, 0], model.start(source, n))
    log_p.sum().backward()
    assert log_p.dtype == step.logits_BN.dtype == torch.float32 and torch.isfinite(log_p).all()
    torch.testing.assert_close(step.logits_BN.exp().sum(-1), torch.ones(B), atol=1e-4, rtol=0)
