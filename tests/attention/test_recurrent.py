"""The attentions of the recurrent era: numbers worked by hand, limits, streams, and REINFORCE. What all share is tested elsewhere."""

import math

import pytest
import torch
from torch import Tensor

from regard.attention import (
    AdditiveAttention,
    Attention,
    ConcatAttention,
    CosineAttention,
    DotAttention,
    GaussianWindow,
    GeneralAttention,
    HardAttention,
    LocalMonotonicAttention,
    LocalPredictiveAttention,
    LocalPredictiveGeneralAttention,
    LocationAttention,
    SoftmaxAttention,
    helpers,
)
from regard.attention.helpers import average
from regard.errors import BiasNotSupported, ShapeError, StateNotSupported
from regard.kernels import Bias
from regard.patterns import causal, full, keep, lengths, per_head, window

B, L, M, H, K, V = 2, 5, 9, 3, 7, 11  # all different: a swapped axis cannot pass by luck
TWO = torch.tensor([1, math.e], dtype=torch.float64) / (1 + math.e)  # the softmax of scores 0 and 1


def make(cls: type[Attention], **options: object) -> Attention:
    torch.manual_seed(1)
    return (cls(**options) if options else cls.sized(heads=H, head_dim=K, length=24)).double()


def data(batch: int = B, queries: int = L, keys: int = M) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, n, H, size, dtype=torch.float64) for n, size in ((queries, K), (keys, K), (keys, V)))
    return q, k, v


def row(*numbers: float) -> Tensor:
    """A sequence of one-dimensional vectors of one head."""
    return torch.tensor(numbers, dtype=torch.float64).view(1, -1, 1, 1)


def close(a: Tensor, b: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=0)


@torch.no_grad()
def set_to(parameter: Tensor, numbers: object) -> None:
    parameter.copy_(torch.as_tensor(numbers, dtype=parameter.dtype).view_as(parameter))


# -- numbers worked by hand ---------------------------------------------------------------------------------------------


def test_dot_by_hand():
    close(make(DotAttention).weights(row(1), row(0, 1)).flatten(), TWO)


def test_dot_is_softmax_attention_without_its_scale():
    q, k, v = data()
    close(make(DotAttention)(q, k, v, causal), SoftmaxAttention(scale=1.0)(q, k, v, causal))


def test_general_by_hand():
    attention = make(GeneralAttention, head_dim=2)
    set_to(attention.w_HKK, [[0, 1], [0, 0]])  # the first entry of q answers to the second of k
    q, k = torch.tensor([1.0, 5.0]).double().view(1, 1, 1, 2), torch.tensor([[9.0, 0.0], [-9.0, 1.0]]).double().view(1, 2, 1, 2)
    close(attention.weights(q, k).flatten(), TWO)


def test_cosine_by_hand():
    attention = make(CosineAttention, beta=1.0)
    q, k = torch.tensor([3.0, 0.0]).double().view(1, 1, 1, 2), torch.tensor([[0.0, 7.0], [0.1, 0.0]]).double().view(1, 2, 1, 2)
    close(attention.weights(q, k).flatten(), TWO)  # cosines 0 and 1, whatever the lengths


def test_cosine_sharpens_to_the_nearest_key():
    q, k, _ = data()
    weights = make(CosineAttention, heads=H, beta=1e6).weights(q, k)
    nearest = torch.nn.functional.cosine_similarity(q[:, :, None], k[:, None], dim=-1).argmax(2).transpose(1, 2)
    assert torch.equal(weights.argmax(-1), nearest)
    close(weights.amax(-1), torch.ones(B, H, L, dtype=torch.float64))


def test_cosine_of_a_zero_query_is_the_mean():
    _, k, v = data()
    close(make(CosineAttention)(torch.zeros(B, L, H, K).double(), k, v), v.mean(1, keepdim=True).expand(B, L, H, V))


def test_additive_by_hand():
    attention = make(AdditiveAttention, head_dim=1)
    set_to(attention.u_HK, [1 / math.tanh(1.5)])
    close(attention.weights(row(0.5), row(-0.5, 1.0)).flatten(), TWO)  # tanh 0 and tanh 1.5


def test_concat_is_additive_behind_its_projections():
    attention, additive = make(ConcatAttention, heads=H, head_dim=K, hidden=4), make(AdditiveAttention, heads=H, head_dim=4)
    set_to(additive.u_HK, attention.u_HA.detach())
    q, k, v = data()
    w_HAK = torch.cat([attention.w_q_HKA, attention.w_k_HKA], 1).transpose(1, 2)  # Luong's W, over [q; k]
    pairs = torch.cat([q[:, :, None].expand(B, L, M, H, K), k[:, None].expand(B, L, M, H, K)], -1)
    hidden = torch.tanh(torch.einsum("hak,blmhk->blmha", w_HAK, pairs))
    scores = torch.einsum("blmha,ha->bhlm", hidden, attention.u_HA)
    close(attention.weights(q, k), scores.softmax(-1))
    close(attention(q, k, v), additive(*attention.prepare(q, k), v))


def test_location_by_hand():
    attention = make(LocationAttention, head_dim=1, max_length=3)
    set_to(attention.w_HKN, [0.0, 1.0, 5.0])
    close(attention.weights(row(1), row(8, 8, 8), lengths([2])).flatten(), torch.cat([TWO, torch.zeros(1).double()]))


def test_location_reads_no_keys_and_refuses_more_than_it_has_positions_for():
    attention, (q, k, v) = make(LocationAttention), data()
    close(attention(q, k, v), attention(q, k + 1, v))
    with pytest.raises(ShapeError, match="up to 24 keys, got 25; make it with max_length=25"):
        attention(*data(keys=25))
    state, stream = attention.start(B), data(queries=25, keys=25)
    for t in range(24):
        attention(*(x[:, t : t + 1] for x in stream), causal, state=state)
    with pytest.raises(ShapeError, match="got 25"):
        attention(*(x[:, 24:25] for x in stream), causal, state=state)


def test_gaussian_window_by_hand():
    attention = make(GaussianWindow, head_dim=1, components=2)
    set_to(attention.w_HKP, torch.zeros(6))
    set_to(attention.c_HP, torch.tensor([0.5, 0.25, 2.0, 0.5, 1.0, 0.5]).double().log())  # α, β, step of two components
    u = torch.arange(1, 4).double()  # counts from one
    want = [0.5 * torch.exp(-2 * (t * 1.0 - u) ** 2) + 0.25 * torch.exp(-0.5 * (t * 0.5 - u) ** 2) for t in (1, 2)]
    close(attention.weights(row(3, -3), row(0, 0, 0))[0, 0], torch.stack(want))


def test_gaussian_window_only_moves_on_and_begins_slowly():
    attention = make(GaussianWindow)
    kappa = attention.window(data(queries=50)[0])[2]
    assert (kappa.diff(dim=1) > 0).all()
    with torch.no_grad():
        assert float(attention.window(torch.zeros(1, 1, H, K).double())[2].max()) < 0.2
    with pytest.raises(BiasNotSupported):
        attention(*data(), bias=torch.zeros(L, M))


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_gaussian_window_survives_any_query(size: float):
    attention, (q, k, v) = make(GaussianWindow).float(), (x.float() for x in data())
    q = (q * size).requires_grad_()
    out = attention(q, k, v)
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert out.isfinite().all() and gradient.isfinite().all()


def test_local_monotonic_by_hand():
    attention = make(LocalMonotonicAttention, radius=1)
    got = attention.weights(row(1, 1, 1, 1), row(0, 1, 0, 1, 0))[0, 0]
    a, e = 1 / (1 + math.e), math.e
    want = [
        [a, a * e, 0, 0, 0],
        [1 / (2 + e), e / (2 + e), 1 / (2 + e), 0, 0],
        [0, e / (1 + 2 * e), 1 / (1 + 2 * e), e / (1 + 2 * e), 0],
        [0, 0, 1 / (2 + e), e / (2 + e), 1 / (2 + e)],
    ]
    close(got, torch.tensor(want, dtype=torch.float64))


def test_local_monotonic_with_a_wide_window_is_dot():
    q, k, v = data()
    close(make(LocalMonotonicAttention, radius=M)(q, k, v), make(DotAttention)(q, k, v))


def test_local_monotonic_stays_at_the_last_key_it_may_see():
    q, k, v = data(queries=20)
    weights = make(LocalMonotonicAttention, radius=2).weights(q, k, lengths([4, 9]))
    close(weights.sum(-1), torch.ones(B, H, 20).double())
    assert (weights[0, :, 10:, :1] == 0).all() and (weights[0, :, 10:, 1:4] > 0).all()


def test_local_predictive_by_hand():
    attention = make(LocalPredictiveAttention, head_dim=1, radius=2)
    set_to(attention.w_HKK, [1.0])
    set_to(attention.u_HK, [math.log(3) / math.tanh(1)])  # sigmoid(log 3) = 3/4
    got = attention.weights(row(1), row(0, 0, 0, 1, 9, 9), lengths([5]))[0, 0, 0]
    p, sigma = 5 * 3 / 4, 1.0  # S is the row's own length, not the padded one
    s = torch.tensor([2.0, 3.0, 4.0]).double()  # within 2 of 3.75
    want = torch.tensor([0.0, 1.0, 9.0]).double().softmax(0) * torch.exp(-((s - p) ** 2) / (2 * sigma**2))
    close(got, torch.cat([torch.zeros(2).double(), want, torch.zeros(1).double()]))


def test_local_predictive_without_fading_is_dot():
    q, k, v = data()
    close(make(LocalPredictiveAttention, heads=H, head_dim=K, radius=M, sigma=1e9)(q, k, v), make(DotAttention)(q, k, v))


def test_local_predictive_general_is_both_of_its_parts():
    """Wide and without fading it is general attention; with the unit matrix it is the local one."""
    q, k, v = data()
    both, general = (
        make(LocalPredictiveGeneralAttention, heads=H, head_dim=K, radius=M, sigma=1e9),
        make(GeneralAttention, heads=H, head_dim=K),
    )
    general.w_HKK.data.copy_(both.score_HKK)
    close(both(q, k, v), general(q, k, v))
    both, local = (
        make(LocalPredictiveGeneralAttention, heads=H, head_dim=K, radius=2),
        make(LocalPredictiveAttention, heads=H, head_dim=K, radius=2),
    )
    local.w_HKK.data.copy_(both.w_HKK)
    local.u_HK.data.copy_(both.u_HK)
    both.score_HKK.data.copy_(torch.eye(K))
    close(both(q, k, v), local(q, k, v))


def test_local_predictive_learns_its_centre():
    attention, (q, k, v) = make(LocalPredictiveAttention, heads=H, head_dim=K, radius=3), data()
    gradients = torch.autograd.grad(attention(q, k, v).sum(), [attention.w_HKK, attention.u_HK])
    assert all(g.abs().sum() > 0 for g in gradients)


# -- chunks, biases, padding --------------------------------------------------------------------------------------------

ALL = [
    GaussianWindow, AdditiveAttention, CosineAttention, HardAttention, DotAttention, GeneralAttention, ConcatAttention,
    LocationAttention, LocalMonotonicAttention, LocalPredictiveAttention, LocalPredictiveGeneralAttention,
]  # fmt: skip
named = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.facts.name)


@named
@pytest.mark.parametrize("pattern", [full, causal & lengths([M, 4]), per_head(causal, window(2), full)], ids=str)
def test_chunks_of_rows_change_nothing(cls: type[Attention], pattern):
    attention, inputs = make(cls), [x.requires_grad_() for x in data(queries=M)]
    bias = torch.randn(H, M, M, dtype=torch.float64, requires_grad=True) if cls.facts.bias else None
    wanted = [*inputs, *attention.parameters(), *([] if bias is None else [bias])]
    results = []
    for numbers in (2**22, 2 * B * H * M):  # the second: one or two rows at a time
        torch.manual_seed(3)
        with helpers.force_row_chunks(numbers):
            out = attention(*inputs, pattern, bias)
        results.append([out, *torch.autograd.grad(out.square().sum(), wanted, allow_unused=True, materialize_grads=True)])
    torch.manual_seed(3)
    slow = average(attention.weights(*inputs[:2], pattern, bias), inputs[2])
    results.append([slow, *torch.autograd.grad(slow.square().sum(), wanted, allow_unused=True, materialize_grads=True)])
    for whole, chunked, defined in zip(*results, strict=True):
        close(whole, chunked)
        close(whole, defined)


class Slope(Bias):
    def tile(self, i: Tensor, j: Tensor, *tensors: Tensor) -> Tensor:
        return -torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)[:, None, None] * (i[:, None] - j).abs()


@named
def test_a_bias_by_rule_is_the_same_as_a_matrix(cls: type[Attention]):
    if not cls.facts.bias:
        pytest.skip("has no scores")
    attention, (q, k, v), slope = make(cls), data(), Slope()
    matrix = slope.whole(L, M, q.device)
    with helpers.force_row_chunks(2 * B * H * M):
        torch.manual_seed(3)
        by_rule = attention(q, k, v, causal, slope)
        torch.manual_seed(3)
        close(by_rule, attention(q, k, v, causal, matrix))


@named
def test_padding_changes_nothing(cls: type[Attention]):
    attention, (q, k, v) = make(cls), data()
    counts = [M, 4]
    torch.manual_seed(3)
    padded = attention(q, k, v, lengths(counts))
    draw = attention._draw if isinstance(attention, HardAttention) else None
    if draw is not None:  # each row alone must draw what it drew in the batch
        torch.manual_seed(3)
        draws = draw(q)
    for b, n in enumerate(counts):
        if draw is not None:
            attention._draw = lambda q, b=b: draws[b : b + 1]
        close(padded[b : b + 1], attention(q[b : b + 1], k[b : b + 1, :n], v[b : b + 1, :n]))


@named
def test_rows_that_may_look_nowhere_are_zeros_with_finite_gradients(cls: type[Attention]):
    attention, (q, k, v) = make(cls), (x.requires_grad_() for x in data())
    mask = torch.ones(L, M, dtype=torch.bool)
    mask[2] = False
    out = attention(q, k, v, keep(mask))
    assert (out[:, 2] == 0).all() and out[:, 3].abs().sum() > 0
    gradients = torch.autograd.grad(out.sum(), [q, k, v, *attention.parameters()], allow_unused=True)
    assert all(g.isfinite().all() for g in gradients if g is not None)


@named
def test_heads_that_do_not_fit_are_refused(cls: type[Attention]):
    if not list(cls.sized(heads=H, head_dim=K, length=24).parameters()):
        pytest.skip("fits any")
    q, k, v = (x[:, :, :2] for x in data())
    with pytest.raises(ShapeError, match=r"was made for 3 heads.*sized\(heads=2"):
        make(cls)(q, k, v)


# -- streams ------------------------------------------------------------------------------------------------------------

fixed = pytest.mark.parametrize("cls", [GaussianWindow, LocalMonotonicAttention], ids=lambda cls: cls.facts.name)


def small(cls: type[Attention]) -> Attention:
    return make(LocalMonotonicAttention, radius=1) if cls is LocalMonotonicAttention else make(cls)


@fixed
def test_steps_over_a_fixed_memory_are_one_pass(cls: type[Attention]):
    attention, (q, k, v), pattern = small(cls), data(queries=8), lengths([M, 5])
    state = attention.start(B)
    steps = [attention(q[:, a:b], k, v, pattern, state=state) for a, b in ((0, 1), (1, 2), (2, 5), (5, 8))]
    close(torch.cat(steps, 1), attention(q, k, v, pattern))
    assert state.length == 8


@fixed
def test_a_state_of_steps_reorders_and_resets(cls: type[Attention]):
    attention, (q, k, v) = small(cls), data(queries=6)
    state = attention.start(B)
    attention(q[:, :3], k, v, state=state)
    attention_overrides = torch.tensor([1, 0, 1])
    state.reorder(attention_overrides)
    close(
        attention(q[attention_overrides, 3:5], k[attention_overrides], v[attention_overrides], state=state),
        attention(q[:, :5], k, v)[attention_overrides, 3:],
    )
    state.reset(torch.tensor([False, True, False])).detach()
    assert state.at is not None and not state.at.requires_grad
    last = attention(q[attention_overrides, 5:], k[attention_overrides], v[attention_overrides], state=state)
    close(last[[0, 2]], attention(q, k, v)[[1, 1], 5:])
    close(last[1:2], attention(q[:1, 5:], k[:1], v[:1]))  # begins again
    with pytest.raises(ShapeError, match="has 3 rows"):
        attention(q[:, :1], k, v, state=state)
    with pytest.raises(StateNotSupported, match="expects a StepState"):
        attention(q, k, v, state=DotAttention().start(B))


@pytest.mark.parametrize(
    "cls", [LocationAttention, LocalPredictiveAttention, LocalPredictiveGeneralAttention], ids=lambda cls: cls.facts.name
)
@pytest.mark.parametrize("pattern", [causal, causal & window(2)], ids=str)
def test_positions_count_from_where_a_row_was_reset(cls: type[Attention], pattern):
    attention, (q, k, v) = make(cls), data(queries=20, keys=20)
    state, steps = attention.start(B, pattern), []
    for t in range(20):
        if t == 7:
            state.reset(torch.tensor([1]))
        steps.append(attention(q[:, t : t + 1], k[:, t : t + 1], v[:, t : t + 1], pattern, state=state))
    close(torch.cat(steps, 1)[:1], attention(q[:1], k[:1], v[:1], pattern))
    close(torch.cat(steps, 1)[1:, 7:], attention(q[1:, 7:], k[1:, 7:], v[1:, 7:], pattern))


# -- hard attention -----------------------------------------------------------------------------------------------------


def test_hard_draws_from_the_softmax_and_takes_the_likeliest_when_not_sampling():
    attention = HardAttention(generator=torch.Generator().manual_seed(0))
    q, k = row(1).expand(1, 20_000, 1, 1), row(0, 1)
    share = attention.weights(q, k)[0, 0].mean(0)
    deviation = math.sqrt(float(TWO.prod()) / 20_000)
    assert ((share - TWO).abs() < 4 * deviation).all()
    assert torch.equal(HardAttention(sample=False).weights(q[:, :1], k).flatten(), torch.tensor([0.0, 1.0]).double())


def test_hard_never_draws_what_it_may_not_see():
    attention = HardAttention(generator=torch.Generator().manual_seed(0))
    q, k, _ = data(queries=500)
    mask = torch.rand(500, M, generator=torch.Generator().manual_seed(1)) < 0.3
    mask[0] = False
    choice = attention.choose(q, k, keep(mask))
    seen = mask.expand(B, H, 500, M)
    assert (
        (choice.index_BHL[:, :, 0] == -1).all() and (choice.log_prob_BHL[:, :, 0] == 0).all() and (choice.entropy_BHL[:, :, 0] == 0).all()
    )
    some = mask.any(-1)
    assert seen[:, :, some].gather(-1, choice.index_BHL[:, :, some].unsqueeze(-1)).all()


def test_choice_agrees_with_categorical():
    attention = HardAttention(generator=torch.Generator().manual_seed(0))
    q, k, v = (x.requires_grad_() for x in data())
    choice = attention.choose(q, k)
    oracle = torch.distributions.Categorical(SoftmaxAttention().weights(q, k))
    close(choice.entropy_BHL, oracle.entropy())
    close(choice.log_prob_BHL, oracle.log_prob(choice.index_BHL))
    for mine, theirs in ((choice.entropy_BHL, oracle.entropy()), (choice.log_prob_BHL, oracle.log_prob(choice.index_BHL))):
        for a, b in zip(*(torch.autograd.grad(x.sum(), [q, k], retain_graph=True) for x in (mine, theirs)), strict=True):
            close(a, b)
    attention.generator.manual_seed(0)
    close(attention(q, k, v), attention.read(v, choice))


def test_steps_draw_what_one_pass_draws():
    attention, (q, k, v) = HardAttention(generator=torch.Generator()), data(queries=M)
    attention.generator.manual_seed(2)
    whole = attention(q, k, v, causal)
    attention.generator.manual_seed(2)
    state = attention.start(B)
    steps = [attention(q[:, t : t + 1], k[:, t : t + 1], v[:, t : t + 1], causal, state=state) for t in range(M)]
    close(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("baseline", [0.0, 0.7])
def test_reinforce_is_unbiased(baseline: float):
    """Two queries, three keys: the exact gradient by enumerating the nine paths, against the mean over many draws."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 1, 4, dtype=torch.float64), torch.randn(1, 3, 1, 4, dtype=torch.float64)
    reward_33 = torch.randn(3, 3, dtype=torch.float64)  # of each path
    logits = q.clone().requires_grad_()
    first, second = SoftmaxAttention().weights(logits, k)[0, 0]
    (exact,) = torch.autograd.grad((first[:, None] * second * reward_33).sum(), logits)

    N = 20_000
    attention = HardAttention(generator=torch.Generator().manual_seed(1))
    queries = q.repeat(N, 1, 1, 1).requires_grad_()
    choice = attention.choose(queries, k.expand(N, -1, -1, -1))
    index_N2, log_prob_N = choice.index_BHL[:, 0], choice.log_prob_BHL[:, 0].sum(-1)
    gain_N = reward_33[index_N2[:, 0], index_N2[:, 1]] - baseline
    (each,) = torch.autograd.grad((gain_N * log_prob_N).sum(), queries)
    z = (each.mean(0) - exact[0]) / (each.std(0) / math.sqrt(N))
    assert z.abs().max() < 4
