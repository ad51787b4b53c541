"""Recurrent attentions against transformers' layers and reference functions, weights copied where there are any."""

import pytest
import torch
from torch import nn

from regard.attention import DeltaNet, GatedDeltaNet, Retention, StateSpaceDuality
from regard.kernels import delta_scan
from regard.layers import GatedHeads, MultiHead, RMSNorm
from regard.patterns import causal, lengths

pytest.importorskip("transformers", reason="its layers are the oracles here")

B, L, H, K, V, D = 2, 150, 3, 8, 5, 24


def close(ours, theirs, wanted=(), tolerance=1e-5):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    if wanted:
        cotangent = torch.randn_like(ours)
        grads = [torch.autograd.grad(out, wanted, cotangent, retain_graph=True) for out in (ours, theirs)]
        torch.testing.assert_close(*grads, atol=10 * tolerance, rtol=10 * tolerance)


class TestQwen3Next:
    """They compute in float32 whatever they are given."""

    @pytest.mark.parametrize("form", ["chunk", "recurrent"])
    @pytest.mark.parametrize("start", [False, True], ids=["from nothing", "from a state"])
    def test_kernel(self, form, start):
        from transformers.models.qwen3_next import modeling_qwen3_next as theirs

        rule = getattr(theirs, f"torch_{form}_gated_delta_rule")
        q, k, v = (torch.randn(B, L, H, size, requires_grad=True) for size in (K, K, V))
        unit = nn.functional.normalize(k, dim=-1)
        beta, g = torch.rand(B, L, H, requires_grad=True), (-torch.rand(B, L, H)).requires_grad_()
        state = torch.randn(B, H, K, V, requires_grad=True) if start else None
        out, last = rule(q, unit, v, g=g, beta=beta, initial_state=state, output_final_state=True)
        mine, mine_last = delta_scan(q * K**-0.5, unit, v, beta, g, state)
        wanted = [x for x in (q, k, v, beta, g, state) if x is not None]
        close(mine, out, wanted)
        close(mine_last, last, wanted[1:])

    @pytest.mark.parametrize("form", ["chunk", "recurrent"])
    def test_mechanisms(self, form):
        """They multiply by 1/√K; we do not."""
        from transformers.models.qwen3_next import modeling_qwen3_next as theirs

        rule = getattr(theirs, f"torch_{form}_gated_delta_rule")
        q, k, v, extra = (torch.randn(B, L, H, size, requires_grad=True) for size in (K, K, V, 2))
        attention = GatedDeltaNet(heads=H)
        beta, g = extra[..., 0].sigmoid(), attention.clock(extra[..., 1])[1]
        out, _ = rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
        close(attention(q, k, v, causal, gates_BMHE=extra), out * K**0.5, (q, k, v, extra))
        out, _ = rule(q, k, v, g=torch.zeros_like(g), beta=beta, use_qk_l2norm_in_kernel=True)
        close(DeltaNet()(q, k, v, causal, gates_BMHE=extra[..., :1]), out * K**0.5, (q, k, v))

    def test_layer(self):
        """The whole of it, its short convolution made the identity. Without their 1/√K the norm wants K times the epsilon."""
        from transformers import Qwen3NextConfig
        from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

        sizes = {"linear_num_key_heads": H, "linear_num_value_heads": H, "linear_key_head_dim": K, "linear_value_head_dim": V}
        theirs = Qwen3NextGatedDeltaNet(Qwen3NextConfig(hidden_size=D, num_hidden_layers=1, layer_types=["linear_attention"], **sizes), 0)
        theirs.activation = None
        theirs.conv1d.weight.data.zero_()[..., -1] = 1
        ours = GatedHeads(
            MultiHead(D, H, GatedDeltaNet(heads=H), head_dim=K, value_dim=V, bias=False),
            norm=lambda width: RMSNorm(width, eps=K * theirs.norm.variance_epsilon),
        )
        q, k, v, z = theirs.in_proj_qkvz.weight.detach().view(H, -1, D).split((K, K, V, V), 1)
        ours.heads.qkv.weight.data = torch.cat([q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)])
        ours.gate.weight.data = z.flatten(0, 1)
        ours.heads.gates.weight.data = theirs.in_proj_ba.weight.detach()
        ours.heads.gates.bias.data.zero_()
        ours.heads.attention.clock.load_state_dict({"log_rate_H": theirs.A_log, "bias_H": theirs.dt_bias})
        ours.norm.weight = theirs.norm.weight
        ours.heads.out.weight = theirs.out_proj.weight
        x = torch.randn(B, L, D, requires_grad=True)
        close(ours(x, pattern=causal), theirs(x), (x, ours.norm.weight))
        padding = torch.arange(L) < torch.tensor([[L], [100]])
        padded = ours(x, pattern=causal & lengths([L, 100]))
        close(padded[padding], theirs(x, attention_mask=padding.long())[padding])


class TestMiniMax:
    """Lightning attention: retention with other decays. Their norm, gate and output are taken out of the way."""

    def test_lightning(self):
        from transformers import MiniMaxConfig
        from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

        config = MiniMaxConfig(hidden_size=D, num_attention_heads=H, num_key_value_heads=H, head_dim=K, num_hidden_layers=3, block_size=32)
        theirs = MiniMaxLightningAttention(config, 1)
        theirs.norm = nn.Identity()
        theirs.output_gate.weight.data.zero_()  # σ(0) = ½
        theirs.out_proj.weight.data = 2 * torch.eye(D)
        x = torch.randn(B, L, D, requires_grad=True)
        q, k, v = theirs.act_fn(theirs.qkv_proj(x)).view(B, L, H, 3 * K).split(K, -1)
        attention = Retention(decay=torch.exp(-theirs.slope_rate).flatten().tolist())
        out, last = theirs(x, None, None)
        close(attention(q, k, v, causal).flatten(-2) * K**0.5, out, (x,))
        state = attention.start(B)
        attention(q, k, v, causal, state=state)
        close(state.sums["kv"], last)


class TestMamba2:
    @pytest.mark.parametrize("groups", [1, H])
    def test_chunk_scan(self, groups):
        """Their B is our k, C is q, x is v. Groups of heads share B and C there; here they are repeated. Final states come transposed."""
        from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

        attention = StateSpaceDuality(heads=H)
        v, dt = torch.randn(B, L, H, V, requires_grad=True), torch.randn(B, L, H, requires_grad=True)
        q, k = (torch.randn(B, L, groups, K, requires_grad=True) for _ in range(2))
        rate, bias = attention.clock.log_rate_H, attention.clock.bias_H
        out, last = mamba2_chunk_scan(v, dt, -rate.exp(), k, q, chunk_size=64, dt_bias=bias, dt_softplus=True, return_final_states=True)
        state = attention.start(B)
        each = [x.expand(B, L, H, K) for x in (q, k)]
        mine = attention(*each, v, causal, state=state, gates_BMHE=dt.unsqueeze(-1))
        close(mine, out, (q, k, v, dt, rate, bias))
        close(state.sums["kv"], last.mT)
