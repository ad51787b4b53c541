"""Named patterns, Longformer's and differential layers against implementations that others wrote, weights copied."""

import pytest
import torch

from regard.attention import BigBirdAttention, LocalAttention
from regard.layers import DifferentialHeads, LongformerHeads
from regard.patterns import causal, lengths

B, L, H, K = 2, 96, 4, 8
D = H * K


pytestmark = pytest.mark.usefixtures("kernel_path")


def equal(ours, theirs, wanted, tolerance=1e-5):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    cotangent = torch.randn_like(ours)
    grads = [torch.autograd.grad(out, wanted, cotangent, retain_graph=True) for out in (ours, theirs)]
    torch.testing.assert_close(*grads, atol=tolerance, rtol=tolerance)


def stacked(*parts: torch.nn.Linear) -> dict[str, torch.Tensor]:
    """One linear map out of several, one after the other."""
    return {name: torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias")}


class TestLongformer:
    """transformers' LongformerSelfAttention. It adds −10,000 to masked keys instead of leaving them out, and gives zeros at padding.

    Its gradient at padding that sees nothing (no global token, none real in the window) is NaN, though no output depends on it;
    ours is zero there. So gradients are compared at real positions.
    """

    def both(self, at):
        transformers = pytest.importorskip("transformers", reason="the oracle of Longformer")
        from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

        config = transformers.LongformerConfig(
            hidden_size=D, num_attention_heads=H, attention_window=[8], num_hidden_layers=1, attention_probs_dropout_prob=0.0
        )
        theirs, ours = LongformerSelfAttention(config, 0).double(), LongformerHeads(D, H, 4, at).double()
        ours.qkv.load_state_dict(stacked(theirs.query, theirs.key, theirs.value))
        ours.global_qkv.load_state_dict(stacked(theirs.query_global, theirs.key_global, theirs.value_global))
        with torch.no_grad():
            ours.out.weight.copy_(torch.eye(D))  # theirs projects back in another module
            ours.out.bias.zero_()
        return theirs, ours

    @pytest.mark.parametrize("at", [(), (0,), (0, 5, 41)], ids=str)
    def test_global_tokens_and_padding(self, at):
        theirs, ours = self.both(at)
        x, sizes = torch.randn(B, L, D, dtype=torch.float64, requires_grad=True), [L, 60]
        real = torch.arange(L) < torch.tensor(sizes)[:, None]
        chosen = torch.zeros(B, L, dtype=torch.bool)
        chosen[:, list(at)] = True
        mask = (chosen.double() * 10000).masked_fill(~real, -10000)
        out = theirs(x, attention_mask=mask, is_index_masked=~real, is_index_global_attn=chosen, is_global_attn=bool(at))[0]
        mine = ours(x, pattern=lengths(sizes))
        torch.testing.assert_close(mine[real], out[real], atol=1e-5, rtol=1e-5)
        cotangent = torch.randn_like(mine[real])
        grads = [torch.autograd.grad(y[real], x, cotangent)[0] for y in (mine, out)]
        torch.testing.assert_close(grads[0][real], grads[1][real], atol=1e-5, rtol=1e-5)
        assert (grads[0][~real] == 0).all()


class TestBigBird:
    """transformers' BigBirdBlockSparseAttention draws its random blocks itself: what else it sees must be ours, to the pair."""

    def test_window_and_global_blocks(self):
        transformers = pytest.importorskip("transformers", reason="the oracle of BigBird")
        from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

        size, length, drawn = 4, 64, 2
        config = transformers.BigBirdConfig(
            hidden_size=D,
            num_attention_heads=H,
            block_size=size,
            num_random_blocks=drawn,
            max_position_embeddings=length,
            attention_probs_dropout_prob=0.0,
        )
        layer = BigBirdBlockSparseAttention(config, 0).train()  # in eval mode it puts block 0 in place of the random ones
        blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(B, length), size)
        seen = layer(
            torch.randn(B, length, D),
            band_mask=band,
            from_mask=rows,
            to_mask=columns,
            from_blocked_mask=blocked,
            to_blocked_mask=blocked,
            output_attentions=True,
        )[1]
        theirs = (seen > 0)[0, :, ::size, ::size]
        ours = BigBirdAttention(heads=H, block=size, random=0).own.mask(length, length)[0, :, ::size, ::size].expand_as(theirs)
        assert (ours <= theirs).all()
        more = (theirs & ~ours).sum(-1)
        assert (more[:, 1:-1] == drawn).all() and (more[:, [0, -1]] == 0).all()


class TestLocal:
    def test_exact_window(self):
        theirs = pytest.importorskip("local_attention", reason="the oracle of local attention")
        q, k, v = (torch.randn(B, L, H, K, requires_grad=True) for _ in range(3))
        other = theirs.LocalAttention(
            window_size=16, causal=True, look_backward=1, exact_windowsize=True, use_rotary_pos_emb=False, autopad=True
        )
        out = other(*(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))).unflatten(0, (B, H)).transpose(1, 2)
        equal(LocalAttention(16)(q, k, v, causal), out, (q, k, v))


class TestDifferential:
    """transformers' DiffLlamaAttention. Its heads h and h + n/2 are the two looks of one head of ours, its layers count from 0."""

    @pytest.mark.parametrize("kv_heads", [4, 2])
    @pytest.mark.parametrize("depth", [0, 3])
    def test_layer(self, depth, kv_heads):
        pytest.importorskip("transformers", reason="the oracle of differential attention")
        from transformers import DiffLlamaConfig
        from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

        config = DiffLlamaConfig(
            hidden_size=D, num_attention_heads=H, num_key_value_heads=kv_heads, attention_bias=True, rms_norm_eps=1e-5, lambda_std_dev=0.3
        )
        config._attn_implementation = "sdpa"
        theirs = DiffLlamaAttention(config, depth).double()
        ours = DifferentialHeads(D, H // 2, depth, kv_heads=kv_heads // 2).double()

        def paired(linear, heads):
            """Rows of head h, then of head h + n/2."""
            order = torch.arange(heads * K).view(2, heads // 2, K).transpose(0, 1).flatten()
            return {name: getattr(linear, name)[order] for name in ("weight", "bias")}

        parts = [paired(theirs.q_proj, H), paired(theirs.k_proj, kv_heads), paired(theirs.v_proj, kv_heads)]
        ours.qkv.load_state_dict({name: torch.cat([part[name] for part in parts]) for name in ("weight", "bias")})
        ours.out.load_state_dict(theirs.o_proj.state_dict())
        with torch.no_grad():
            for name in ("q1", "k1", "q2", "k2"):
                getattr(ours.attention, f"{name}_HK").copy_(getattr(theirs, f"lambda_{name}"))
        x = torch.randn(B, L, D, dtype=torch.float64, requires_grad=True)
        still = torch.ones(1, L, K, dtype=torch.float64), torch.zeros(1, L, K, dtype=torch.float64)  # rotary positions turned off
        mask = torch.zeros(L, L, dtype=torch.float64).masked_fill(~causal.mask(L, L)[0, 0], -torch.inf)
        out = theirs(x, still, mask.expand(B, 1, L, L))[0]
        equal(ours(x, pattern=causal), out, (x,))
