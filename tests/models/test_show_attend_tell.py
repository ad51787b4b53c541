"""Show, Attend and Tell: decoding equals teacher forcing, hard attention samples and learns as the paper says."""

import itertools

import pytest
import torch

from regard import capture
from regard.attention import HardAttention, SoftmaxAttention
from regard.attention.hard import Choice
from regard.errors import BadConfig, ShapeError
from regard.models import ShowAttendTell, ShowAttendTellConfig
from regard.models.show_attend_tell import ConvEncoder, _SampledRead
from regard.tasks.captions import Captioning, CaptionsOptions, doubly_stochastic, rewards
from regard.tasks.image_text import CaptionBatch

B, L, N = 3, 5, 11


def made(attention="additive", **more):
    torch.manual_seed(0)
    sizes = {"image_size": 12, "stride": 4, "features": 10, "embedding": 7, "width": 9, "alignment": 6, "dropout": 0.0}
    return ShowAttendTell(ShowAttendTellConfig(vocab_size=N, attention=attention, **sizes | more)).double().eval()


def inputs(size=12):
    torch.manual_seed(1)
    return torch.randn(B, 3, size, size, dtype=torch.float64), torch.randint(N, (B, L))


@pytest.mark.parametrize("attention", ["additive", "hard", "softmax", "mean"])
def test_a_step_is_a_position(attention):
    model, (image, ids_BL) = made(attention), inputs()
    logits_BLN, state = model(image, ids_BL), model.start(image)
    reading = model.read(image, ids_BL)
    torch.testing.assert_close(model.logits(reading.x_BLD), logits_BLN)
    for t in range(L):
        step = model.step(ids_BL[:, t], state, want_weights=True)
        torch.testing.assert_close(step.logits_BN, logits_BLN[:, t])
        torch.testing.assert_close(step.weights_BM, reading.weights_BLM[:, t])
    torch.testing.assert_close(reading.weights_BLM.sum(-1), torch.ones(B, L, dtype=torch.float64))
    state = model.start(image)
    first = model.step(ids_BL[:, 0], state).logits_BN
    state.reorder(torch.tensor([2, 0, 0]))
    torch.testing.assert_close(model.step(ids_BL[[2, 0, 0], 1], state).logits_BN, logits_BLN[[2, 0, 0], 1])
    torch.testing.assert_close(first, logits_BLN[:, 0])


@pytest.mark.parametrize("stride", [2, 4, 8])
def test_a_cell_sees_as_many_pixels_on_each_side(stride):
    torch.manual_seed(0)
    encoder, size = ConvEncoder(3, 8, stride).eval(), 16 * stride
    image = torch.rand(1, 3, size, size, requires_grad=True)
    grid, cell = 16, (7, 9)
    encoder(image)[0, cell[0] * grid + cell[1]].sum().backward()
    for axis, at in enumerate(cell):
        seen = image.grad[0].abs().sum(0).sum(1 - axis).nonzero().flatten()
        assert int(seen[0]) > 0 and int(seen[-1]) < size - 1 and (seen[0] + seen[-1]) / 2 == at * stride + (stride - 1) / 2


def test_one_step_by_hand():
    """The equations of the paper, one after the other."""
    model, (image, ids_BL) = made(), inputs()
    a_BMD = model.encoder(image) + model.position
    h, c = (torch.tanh(model.first[name](a_BMD.mean(1))) for name in "hc")
    e = model.token(ids_BL[:, 0])
    W, b = model.query_and_gate.weight, model.query_and_gate.bias
    s = torch.cat([h, e], -1)
    score_BM = torch.tanh((s @ W[:-1].T + b[:-1])[:, None] + a_BMD @ model.key.weight.T) @ model.attention.u_HK[0]
    z = torch.sigmoid(s @ W[-1] + b[-1])[:, None] * (score_BM.softmax(-1)[..., None] * a_BMD).sum(1)
    cell = torch.nn.LSTMCell(17, 9).double()
    cell.load_state_dict({name.removesuffix("_l0"): x for name, x in model.lstm.layers.state_dict().items()})
    h, c = cell(torch.cat([e, z], -1), (h, c))
    logits = model.output(torch.tanh(e + model.from_state(h) + model.from_context(z)))
    torch.testing.assert_close(model(image, ids_BL)[:, 0], logits)


def test_each_word_is_captured():
    model, (image, ids_BL) = made(), inputs()
    with capture(model) as maps:
        model.features(image, ids_BL)
    weights_BLM = torch.cat([m.weights_BHLM[:, 0] for m in maps["attention"]], 1)
    torch.testing.assert_close(weights_BLM.double(), model.read(image, ids_BL).weights_BLM, atol=1e-6, rtol=1e-5)


def test_bad_sizes():
    with pytest.raises(ShapeError, match="12, 12"):
        made()(torch.zeros(1, 3, 8, 8, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(ShapeError, match="power of two"):
        made(stride=3)
    with pytest.raises(BadConfig, match="at most 4,096 tokens"):
        made(max_length=2**30)


# -- hard attention ------------------------------------------------------------------------------------------------------


def test_samples_match_the_weights():
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 1, 1, 6), torch.randn(1, 7, 1, 6), torch.eye(7).view(1, 7, 1, 7)
    rows = 20_000
    read = _SampledRead(torch.zeros(rows, dtype=torch.bool))
    counts_M = read(q.expand(rows, -1, -1, -1), k.expand(rows, -1, -1, -1), v.expand(rows, -1, -1, -1)).sum(0)
    expected_M = rows * SoftmaxAttention().weights(q, k)[0, 0, 0]
    assert float(((counts_M - expected_M) ** 2 / expected_M).sum()) < 22.5  # χ² of 6 degrees of freedom: 1 in 1,000
    weights, log_prob, entropy = read.steps[0]
    torch.testing.assert_close(entropy[0], torch.special.entr(weights[0]).sum())
    torch.testing.assert_close(log_prob.exp().unique(), weights[0].unique())


def test_a_share_reads_the_average():
    torch.manual_seed(0)
    q, k, v = torch.randn(4, 1, 1, 6), torch.randn(4, 7, 1, 6), torch.randn(4, 7, 1, 5)
    soft_B = torch.tensor([True, False, True, False])
    read = _SampledRead(soft_B)
    out_BD = read(q, k, v)
    torch.testing.assert_close(out_BD[soft_B], SoftmaxAttention()(q, k, v)[soft_B, 0, 0])
    assert all((out_BD[n] == v[n, :, 0]).all(-1).any() for n in (1, 3)) and (read.steps[0][1][soft_B] == 0).all()


def along(path):
    """What chooses the cells of this path, one per call."""
    steps = iter(path)

    def choose(self, q, k):
        at, log_p_BHLM = next(steps), SoftmaxAttention().weights(q, k).log()
        return Choice(torch.full((1, 1, 1), at), log_p_BHLM[..., at], torch.zeros(1, 1, 1))

    return choose


@pytest.mark.parametrize("baseline", [0.0, -3.0])
def test_reinforce_is_unbiased(monkeypatch, baseline):
    """Two steps over four cells: the expectation over all sixteen paths of the gradient is the gradient of the expectation."""
    model = made("hard", image_size=4, stride=2).train()
    torch.manual_seed(2)
    image, ids_BL = torch.randn(1, 3, 4, 4, dtype=torch.float64), torch.tensor([[1, 4, 5]])
    batch = CaptionBatch(image, ids_BL, torch.tensor([3]))
    objective = Captioning(CaptionsOptions(reinforce=1.0, entropy=0.0, soft_share=0.0, soft_epochs=0))
    parameters = [p for p in model.parameters() if p.requires_grad]
    mean, expected_log_p = [torch.zeros_like(p) for p in parameters], 0.0
    for path in itertools.product(range(4), repeat=2):
        monkeypatch.setattr(HardAttention, "choose", along(path))
        model.baseline_L.fill_(baseline)
        loss = objective.loss(model, batch)
        # log p(path) and log p(y | path), apart from the surrogate: the terms of the exact expectation
        monkeypatch.setattr(HardAttention, "choose", along(path))
        reading = model.read(image, ids_BL[:, :-1], 0.0)
        p = reading.log_prob_BL.sum().exp()
        expected_log_p = expected_log_p + p * model.logits(reading.x_BLD).log_softmax(-1).gather(-1, ids_BL[:, 1:, None]).sum()
        for total, gradient in zip(mean, torch.autograd.grad(loss.total, parameters, allow_unused=True), strict=True):
            total += 0 if gradient is None else float(p.detach()) * gradient
    exact = torch.autograd.grad(-expected_log_p, parameters, allow_unused=True)
    assert sum(g is not None and bool(g.abs().max() > 1e-4) for g in exact) > 10
    for total, gradient in zip(mean, exact, strict=True):
        torch.testing.assert_close(total, torch.zeros_like(total) if gradient is None else gradient)


def test_the_baseline_is_a_moving_average():
    model = made("hard").train()
    image, ids_BL = inputs()
    objective = Captioning(CaptionsOptions())  # in the first epochs all read the average
    batch = CaptionBatch(image, ids_BL, torch.tensor([L, L, L - 2]))
    log_p_BL = model(image, ids_BL[:, :-1]).log_softmax(-1)  # only its shape
    objective.loss(model, batch)
    first = model.baseline_L.clone()
    objective.loss(model, batch)
    torch.testing.assert_close(model.baseline_L, 1.9 * first)  # 0.9 · 0.1 R + 0.1 R
    assert (first[: log_p_BL.shape[1]] < 0).all() and (first[log_p_BL.shape[1] :] == 0).all()


def test_rewards_and_penalty_by_hand():
    log_p, real = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -5.0, -7.0]]), torch.tensor([[True, True, True], [True, False, False]])
    assert rewards(log_p, real).tolist() == [[-6.0, -5.0, -3.0], [-1.0, 0.0, 0.0]]
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], [[1.0, 0.0, 0.0], [0.3, 0.3, 0.4]]])
    found = doubly_stochastic(weights, torch.tensor([[True, True], [True, False]]))
    assert found.tolist() == [0.25**2 + 0.25**2 + 0.5**2, 2.0]  # sums 0.75 0.75 0.5, and 1 0 0 without the padded step
