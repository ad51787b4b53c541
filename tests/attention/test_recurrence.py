"""Attentions that are a recurrence: the forms agree, what they become at their limits, numbers by hand, streams."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard.attention import (
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    GatedRandomFeatureAttention,
    KimiDeltaAttention,
    RecurrentFacts,
    RecurrentState,
    Retention,
    StateSpaceDuality,
)
from regard.attention.helpers import average
from regard.errors import BadConfig, ShapeError
from regard.kernels import scan
from regard.patterns import causal, lengths, since

B, L, H, K, V = 2, 150, 3, 5, 7  # more than two chunks
FAMILY = [Retention, GatedLinearAttention, StateSpaceDuality, DeltaNet, GatedDeltaNet, KimiDeltaAttention]
family = pytest.mark.parametrize("mechanism", FAMILY, ids=lambda m: m.facts.name)


def made(mechanism, length=L, dtype=torch.float64):
    """A mechanism, its q, k, v, and the extra numbers it wants as a keyword."""
    attention = mechanism.sized(heads=H, head_dim=K, length=length).to(dtype)
    q, k, v = (torch.randn(B, length, H, size, dtype=dtype) for size in (K, K, V))
    extra = {"gates_BMHE": torch.randn(B, length, H, attention.gates, dtype=dtype)} if attention.gates else {}
    return attention, q, k, v, extra


def part(extra: dict[str, Tensor], some: slice) -> dict[str, Tensor]:
    return {name: x[:, some] for name, x in extra.items()}


def with_gates(q, *values):
    """The same extra numbers at every token and head."""
    return torch.tensor(values, dtype=q.dtype).expand(*q.shape[:3], len(values))


@family
def test_parallel_chunked_and_recurrent_forms_agree(mechanism):
    attention, q, k, v, extra = made(mechanism)
    chunked = attention(q, k, v, causal, **extra)
    parallel = average(attention.weights(q, k, causal, **extra), v)
    state = attention.start(B)
    steps = [slice(t, t + 1) for t in range(L)]
    recurrent = torch.cat([attention(q[:, t], k[:, t], v[:, t], causal, state=state, **part(extra, t)) for t in steps], 1)
    torch.testing.assert_close(chunked, parallel, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(recurrent, parallel, atol=1e-10, rtol=1e-10)


@family
def test_a_reset_row_begins_anew_and_rows_move(mechanism):
    attention, q, k, v, extra = made(mechanism)
    first, second, order = slice(0, 70), slice(70, L), torch.tensor([1, 0, 1])
    state = attention.start(B)
    attention(q[:, first], k[:, first], v[:, first], causal, state=state, **part(extra, first))
    state.reorder(order).reset(torch.tensor([2]))
    later = {name: x[order][:, second] for name, x in extra.items()}
    out = attention(q[order][:, second], k[order][:, second], v[order][:, second], causal, state=state, **later)
    whole = attention(q, k, v, causal, **extra)[:, second]
    anew = attention(q[:, second], k[:, second], v[:, second], causal, **part(extra, second))
    torch.testing.assert_close(out, torch.stack([whole[1], whole[0], anew[1]]))


@family
def test_padding_leaves_the_state_alone(mechanism):
    """On the right or on the left: the state is that of the real tokens."""
    attention, q, k, v, extra = made(mechanism, 80)
    for pattern, real in ((causal & lengths([80, 50]), slice(0, 50)), (causal & since(torch.tensor([0, 30])), slice(30, 80))):
        padded, alone = attention.start(B), attention.start(B)
        attention(q, k, v, pattern, state=padded, **extra)
        attention(q[:, real], k[:, real], v[:, real], causal, state=alone, **part(extra, real))
        torch.testing.assert_close(padded.sums["kv"][1], alone.sums["kv"][1])


@family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_long_stream_does_not_drift(mechanism, dtype):
    attention, q, k, v, extra = made(mechanism, 700, torch.float32)
    q, k, v, extra = q.to(dtype), k.to(dtype), v.to(dtype), {name: x.to(dtype) for name, x in extra.items()}
    attention.requires_grad_(False)
    state = attention.start(B)
    steps = [slice(t, t + 1) for t in range(700)]
    out = torch.cat([attention(q[:, t], k[:, t], v[:, t], causal, state=state, **part(extra, t)) for t in steps], 1)
    exact = attention.double()(q.double(), k.double(), v.double(), causal, **{name: x.double() for name, x in extra.items()})
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), exact, atol=tolerance * exact.abs().max().item(), rtol=0)
    assert state.sums["kv"].dtype == torch.float32


@family
def test_training_keeps_nothing_a_pair(mechanism):
    attention, q, k, v, extra = made(mechanism, 1024, torch.float32)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (sizes.append(x.numel()), x)[1], lambda x: x):
        attention(q.requires_grad_(), k.requires_grad_(), v, causal & lengths([1024, 900]), **extra)
    assert max(sizes) <= 1024 * B * H * V


@family
def test_queries_before_the_first_key_see_nothing(mechanism):
    attention, q, k, v, extra = made(mechanism, 9)
    few = slice(0, 6)
    out = attention(q, k[:, few], v[:, few], causal, **part(extra, few))
    assert (out[:, :3] == 0).all()
    weights = attention.weights(q, k[:, few], causal, **part(extra, few))
    torch.testing.assert_close(out, average(weights, v[:, few]))
    with pytest.raises(ShapeError, match="9 queries and 6 keys"):
        attention(q, k[:, few], v[:, few], causal, state=attention.start(B), **part(extra, few))


def test_retention_by_hand():
    """γ = 31/32 for head 0 and 63/64 for head 1; q·k / √4 = 2 everywhere."""
    ones = torch.ones(1, 3, 2, 4, dtype=torch.float64)
    weights = Retention().weights(ones, ones, causal)[0]
    for head, gamma in enumerate((31 / 32, 63 / 64)):
        expected = [[2.0, 0, 0], [2 * gamma, 2, 0], [2 * gamma**2, 2 * gamma, 2]]
        torch.testing.assert_close(weights[head], torch.tensor(expected, dtype=torch.float64))


def test_retention_without_decay_is_a_sum():
    _, q, k, v, _ = made(Retention)
    torch.testing.assert_close(Retention(decay=[1.0] * H)(q, k, v, causal), scan(q * K**-0.5, k, v)[0])


def test_decays_that_cannot_be_are_named():
    with pytest.raises(BadConfig, match=r"1\.5"):
        Retention(decay=[0.5, 1.5])
    _, q, k, v, _ = made(Retention)
    with pytest.raises(ShapeError, match="made for 2 heads"):
        Retention(decay=[0.5, 0.9])(q, k, v, causal)
    for mechanism in (StateSpaceDuality, GatedDeltaNet):
        with pytest.raises(ShapeError, match="made for 4 heads"):
            mechanism(heads=4)(q, k, v, causal, gates_BMHE=with_gates(q, *[0.0] * mechanism.gates))


def test_gates_by_hand():
    """σ(0) = ½, so with temperature 1 each feature halves at each token after it was written."""
    attention = GatedLinearAttention(head_dim=4, temperature=1)
    ones = torch.ones(1, 3, 1, 4, dtype=torch.float64)
    gates = torch.zeros(1, 3, 1, 4, dtype=torch.float64)
    gates[0, 2, 0, :2] = math.log(3)  # two features keep three quarters at the last token
    weights = attention.weights(ones, ones, causal, gates_BMHE=gates)[0, 0]
    kept = (2 * 0.75 + 2 * 0.5) / 2
    torch.testing.assert_close(weights, torch.tensor([[2.0, 0, 0], [1, 2, 0], [0.5 * kept, kept, 2]], dtype=torch.float64))


def test_open_gates_are_a_sum_and_equal_gates_are_retention():
    _, q, k, v, _ = made(Retention)
    attention, gamma = GatedLinearAttention(head_dim=K), 0.9
    torch.testing.assert_close(attention(q, k, v, causal, gates_BMHE=with_gates(q, *[60.0] * K)), scan(q * K**-0.5, k, v)[0])
    logit = math.log(gamma**16 / (1 - gamma**16))
    gated = attention(q, k, v, causal, gates_BMHE=with_gates(q, *[logit] * K))
    torch.testing.assert_close(gated, Retention(decay=[gamma] * H)(q, k, v, causal))


def test_time_that_stands_still():
    """Δ → 0: nothing is forgotten and nothing is written; after a long step only the newest token counts."""
    attention, q, k, v, _ = made(StateSpaceDuality)
    x = torch.full((B, L, H, 1), -60.0, dtype=torch.float64)
    x[:, 3] = 60
    out = attention(q, k, v, causal, gates_BMHE=x)
    assert out[:, :3].abs().max() < 1e-9
    step = 60 + attention.clock.bias_H.detach()
    written = step[:, None] * torch.einsum("blhk,bhk->blh", q[:, 3:], k[:, 3]).unsqueeze(-1) * v[:, 3:4]
    torch.testing.assert_close(out[:, 3:], written)


def test_clocks_begin_as_in_mamba():
    clock = StateSpaceDuality(heads=4096).clock
    step, log_decay = clock(torch.zeros(1, 1, 4096))
    assert 0.00099 < step.min() < 0.0011 and 0.09 < step.max() < 0.101
    rate = -log_decay / step
    assert 1 <= rate.min() < 1.1 and 15.9 < rate.max() <= 16.001


def test_the_delta_rule_by_hand():
    """Two keys at right angles, the first written twice with β = ½: half of the old answer stays."""
    k = torch.eye(2, dtype=torch.float64)[[0, 1, 0]].view(1, 3, 1, 2) * 1e3  # of length one after all
    weights = DeltaNet().weights(k, k, causal, gates_BMHE=torch.zeros(1, 3, 1, 1, dtype=torch.float64))[0, 0]
    torch.testing.assert_close(weights, torch.tensor([[0.5, 0, 0], [0, 0.5, 0], [0.25, 0, 0.5]], dtype=torch.float64))


def test_the_last_value_of_a_key_wins():
    k = nn.functional.normalize(torch.randn(1, 6, 1, 8, dtype=torch.float64), dim=-1)[:, [0, 1, 2, 0, 1, 0]] * 1e3
    v = torch.randn(1, 6, 1, V, dtype=torch.float64)
    sure = torch.full((1, 6, 1, 1), 60.0, dtype=torch.float64)
    out = DeltaNet()(k, k, v, causal, gates_BMHE=sure)
    torch.testing.assert_close(out, v)  # every query asks for the key just written
    last = DeltaNet().weights(k, k, causal, gates_BMHE=sure)[0, 0, 5]
    torch.testing.assert_close(last, torch.tensor([0, 0, 0, 0, 0, 1.0], dtype=torch.float64), atol=1e-9, rtol=0)


def test_gated_without_decay_is_the_delta_rule():
    attention, q, k, v, _ = made(GatedDeltaNet)
    b = torch.randn(B, L, H, 1, dtype=torch.float64)
    gated = attention(q, k, v, causal, gates_BMHE=torch.cat([b, torch.full_like(b, -60)], -1))
    torch.testing.assert_close(gated, DeltaNet()(q, k, v, causal, gates_BMHE=b))


def test_gated_that_never_writes_only_forgets():
    attention, q, k, v, _ = made(GatedDeltaNet)
    state = attention.start(B)
    state.sums["kv"] = torch.randn(B, H, K, V, dtype=torch.float64)
    before = state.sums["kv"]
    attention(q, k, v, causal, state=state, gates_BMHE=with_gates(q, -1e3, 0.0))
    log_decay = attention.clock(torch.zeros(B, L, H, dtype=torch.float64))[1].sum(1)
    torch.testing.assert_close(state.sums["kv"], before * log_decay.exp()[..., None, None])


def test_kimi_is_the_loop_over_time():
    attention, q, k, v, extra = made(KimiDeltaAttention, length=70)
    inputs = [x.requires_grad_() for x in (q, k, v, extra["gates_BMHE"])]
    fast, loop = attention(q, k, v, causal, **extra), attention.reference(*inputs)
    torch.testing.assert_close(fast, loop, atol=1e-10, rtol=1e-10)
    wanted, cotangent = [*inputs, *attention.parameters()], torch.randn_like(fast)
    torch.testing.assert_close(*(torch.autograd.grad(out, wanted, cotangent) for out in (fast, loop)), atol=1e-9, rtol=1e-9)


def test_kimi_with_features_that_decay_alike_is_the_gated_delta_rule():
    kimi, gated = made(KimiDeltaAttention)[0], made(GatedDeltaNet)[0]
    _, q, k, v, extra = made(GatedDeltaNet)
    b, x = extra["gates_BMHE"].split(1, -1)
    with torch.no_grad():
        kimi.log_rate_H.copy_(gated.clock.log_rate_H)
        kimi.bias_HK.copy_(gated.clock.bias_H.unsqueeze(-1).expand(H, K))
    alike = kimi(q, k, v, causal, gates_BMHE=torch.cat([b, x.expand(B, L, H, K)], -1))
    torch.testing.assert_close(alike, gated(q, k, v, causal, **extra))


def test_kimi_forgets_one_feature_and_keeps_another():
    """Written along both features, the first decayed to nothing: half of the squared norm of the key remains of the answer."""
    attention = KimiDeltaAttention(heads=1, head_dim=2).double()
    k = torch.full((1, 2, 1, 2), 1e3, dtype=torch.float64)
    gates = torch.tensor([[60.0, -60, -60], [-60, 1e4, -60]], dtype=torch.float64).view(1, 2, 1, 3)  # write; then only decay
    weights = attention.weights(k, k, causal, gates_BMHE=gates)[0, 0]
    torch.testing.assert_close(weights[:, 0], torch.tensor([1.0, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("mechanism", [*FAMILY, GatedRandomFeatureAttention], ids=lambda m: m.facts.name)
def test_they_share_their_facts(mechanism):
    assert type(mechanism.facts) is RecurrentFacts


@family
def test_states_are_sums_of_fixed_size(mechanism):
    attention, q, k, v, extra = made(mechanism)
    state = attention.start(B)
    attention(q, k, v, causal, state=state, **extra)
    assert isinstance(state, RecurrentState) and {name: x.shape for name, x in state.sums.items()} == {"kv": (B, H, K, V)}
