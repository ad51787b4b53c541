"""Random feature attention: the kernel it estimates, the loop over time, gates."""

import pytest
import torch

from regard.attention import GatedRandomFeatureAttention, RandomFeatureAttention, SoftmaxAttention
from regard.errors import PatternNotSupported
from regard.layers import MultiHead
from regard.patterns import causal, full, lengths

B, L, H, K, V = 2, 70, 2, 5, 3


def inputs(length=L):
    return [torch.randn(B, length, H, size, dtype=torch.float64) for size in (K, K, V)]


def test_many_features_give_softmax_of_unit_vectors():
    """exp(−σ²‖q̂ − k̂‖²/2) is exp(σ² q̂·k̂) up to a constant, so the limit is softmax attention with scale σ². The error falls as F^−½."""
    q, k, v = inputs()
    unit = [x / x.norm(dim=-1, keepdim=True) for x in (q, k)]
    for pattern in (full, causal):
        exact, errors = SoftmaxAttention(scale=1.2**2)(*unit, v, pattern), []
        for features in (128, 1024, 8192):
            attention = RandomFeatureAttention(head_dim=K, heads=H, num_features=features, seed=0).double()
            attention.sigma_HK.data.fill_(1.2)
            errors.append(((attention(q, k, v, pattern) - exact).norm() / exact.norm()).item())
        assert errors[2] < 0.05 and 1.5 < errors[0] / errors[1] < 6 and 1.5 < errors[1] / errors[2] < 6, errors  # √8 = 2.8


def test_lengths_of_queries_and_keys_do_not_matter():
    q, k, v = inputs()
    attention = RandomFeatureAttention(head_dim=K, heads=H, seed=0).double()
    torch.testing.assert_close(attention(q * 3, k * 0.2, v), attention(q, k, v))


def test_denominators_below_a_hundredth_are_taken_as_that():
    """Two features that point apart: cos π = −1 as the sum, which would turn the average over."""
    attention = RandomFeatureAttention(head_dim=1, num_features=1, seed=0)
    attention.w_HFK.fill_(torch.pi / 2)
    one = torch.ones(1, 1, 1, 1)
    torch.testing.assert_close(attention.weights(one, -one), torch.full((1, 1, 1, 1), -100.0))
    torch.testing.assert_close(attention(one, -one, one), torch.full((1, 1, 1, 1), -100.0))
    torch.testing.assert_close(attention(one, one, one), one)


@pytest.mark.parametrize("make", [RandomFeatureAttention, GatedRandomFeatureAttention])
def test_waves_come_from_a_seed(make):
    before = torch.get_rng_state()
    one, two, other = (make(head_dim=K, heads=H, seed=seed) for seed in (3, 3, 4))
    assert torch.get_rng_state().equal(before) and one.w_HFK.equal(two.w_HFK) and not one.w_HFK.equal(other.w_HFK)
    other.redraw(3)
    assert one.w_HFK.equal(other.w_HFK)
    torch.manual_seed(0)
    drawn = [make(head_dim=K).w_HFK for _ in range(2)]
    torch.manual_seed(0)
    assert make(head_dim=K).w_HFK.equal(drawn[0]) and not drawn[0].equal(drawn[1])
    assert "w_HFK" in one.state_dict() and {name for name, _ in one.named_parameters()} == {"sigma_HK"}


class TestGate:
    def by_loop(self, attention, q, k, v, logit):
        """The recurrence of the paper, token by token."""
        g, phi_q, phi_k = (
            torch.sigmoid(logit[..., 0]),
            attention.features(q, torch.zeros(1, 1, dtype=torch.long)),
            attention.features(k, torch.zeros(1, 1, dtype=torch.long)),
        )
        s, z, outs = 0.0, 0.0, []
        for t in range(q.shape[1]):
            new = phi_k[:, t] * (1 - g[:, t, :, None])
            s = g[:, t, :, None, None] * s + new.unsqueeze(-1) * v[:, t].unsqueeze(-2)
            z = g[:, t, :, None] * z + new
            over = (phi_q[:, t].unsqueeze(-1) * s).sum(-2)
            outs.append(over / (phi_q[:, t] * z).sum(-1, keepdim=True).clamp(min=0.01))
        return torch.stack(outs, 1)

    @pytest.mark.parametrize("bias", [-3.0, 0.0, 5.0])
    def test_recurrence_of_the_paper(self, bias):
        (q, k, v), logit = inputs(150), torch.randn(B, 150, H, 1, dtype=torch.float64) + bias
        attention = GatedRandomFeatureAttention(head_dim=K, heads=H, seed=0).double()
        theirs = self.by_loop(attention, q, k, v, logit)
        torch.testing.assert_close(attention(q, k, v, causal, gates_BMHE=logit), theirs, atol=1e-10, rtol=1e-10)

    def test_a_shut_gate_sees_only_itself(self):
        (q, _, v), logit = inputs(), torch.full((B, L, H, 1), -50.0, dtype=torch.float64)
        attention = GatedRandomFeatureAttention(head_dim=K, heads=H, seed=0).double()
        torch.testing.assert_close(attention(q, q, v, causal, gates_BMHE=logit), v)  # φ(q)·φ(q) = 1

    def test_a_constant_gate_is_a_decay(self):
        """g = ½: a key counts half as much with every step."""
        q = k = torch.ones(1, 4, 1, K)
        weights = GatedRandomFeatureAttention(head_dim=K, seed=0).weights(q, k, causal, gates_BMHE=torch.zeros(1, 4, 1, 1))
        torch.testing.assert_close(weights[0, 0, 3], torch.tensor([1.0, 2.0, 4.0, 8.0]) / 15)

    def test_padding_leaves_the_past_as_it_is(self):
        (q, k, v), logit = inputs(10), torch.randn(B, 10, H, 1, dtype=torch.float64)
        attention = GatedRandomFeatureAttention(head_dim=K, heads=H, seed=0).double()
        q[:, 6:] = q[:, 5:6]
        out = attention(q, k, v, causal & lengths([6, 6]), gates_BMHE=logit)
        torch.testing.assert_close(out[:, 6:], out[:, 5:6].expand(-1, 4, -1, -1))

    def test_only_what_came_before(self):
        (q, k, v), logit = inputs(), torch.zeros(B, L, H, 1, dtype=torch.float64)
        attention = GatedRandomFeatureAttention(head_dim=K, heads=H).double()
        for pattern in (full, lengths([L, 3])):
            with pytest.raises(PatternNotSupported, match="supports `causal` and `causal & lengths`"):
                attention(q, k, v, pattern, gates_BMHE=logit)

    def test_in_a_layer_step_by_step(self):
        layer = MultiHead(12, 3, GatedRandomFeatureAttention(head_dim=4, heads=3)).double()
        x = torch.randn(2, 9, 12, dtype=torch.float64)
        whole, state = layer(x, pattern=causal), layer.start(2)
        steps = torch.cat([layer(x[:, t : t + 1], pattern=causal, state=state) for t in range(9)], 1)
        torch.testing.assert_close(steps, whole)
        whole.sum().backward()
        assert layer.gates.weight.shape == (3, 12) and layer.gates.weight.grad.abs().sum() > 0
