"""Linear attentions against packages that others wrote, with their random features copied."""

import warnings

import pytest
import torch
from torch.nn.functional import elu

from regard.attention import EfficientAttention, LinearAttention, Performer
from regard.patterns import causal, full, lengths

B, L, H, K = 2, 96, 3, 8


def package(name: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said by them when they are imported
        return pytest.importorskip(name, reason="an oracle, not needed to use the library")


def qkv():
    return [torch.randn(B, L, H, K, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def equal(ours, theirs, wanted):
    theirs = theirs.transpose(1, 2)
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    cotangent = torch.randn_like(ours)
    grads = [torch.autograd.grad(out, wanted, cotangent) for out in (ours, theirs)]
    torch.testing.assert_close(*grads, atol=1e-9, rtol=1e-9)


class TestPerformerPytorch:
    """performer-pytorch 1.1.4. It adds 10⁻⁴ to every feature; here ε = 0, so that the weights are the estimate itself. Its causal form passes the
    size of a chunk as the number of chunks, which costs memory and changes no result; the stabiliser of its keys sees the future,
    which without ε changes no result either, as long as nothing underflows. Its random matrices lean to one side (QR without the signs of R);
    ours do not, so only lengths and angles are compared."""

    @pytest.mark.parametrize("pattern", [full, causal], ids=str)
    def test_favor(self, pattern):
        theirs = package("performer_pytorch.performer_pytorch")
        q, k, v = qkv()
        omega = theirs.gaussian_orthogonal_random_matrix(20, K).double()
        ours = Performer(head_dim=K, num_features=20).double()
        ours.omega_FK.copy_(omega)
        phi_q, phi_k = (
            theirs.softmax_kernel(x.transpose(1, 2), projection_matrix=omega, is_query=is_query, eps=0.0)
            for x, is_query in ((q, True), (k, False))
        )
        if pattern is full:
            out = theirs.linear_attention(phi_q, phi_k, v.transpose(1, 2))
        else:
            out = theirs.causal_linear_attention_noncuda(phi_q, phi_k, v.transpose(1, 2), eps=0.0)
        equal(ours(q, k, v, pattern), out, (q, k, v))

    def test_random_matrices_alike(self):
        """Blocks of orthogonal rows, squared lengths of mean K."""
        theirs = package("performer_pytorch.performer_pytorch").gaussian_orthogonal_random_matrix(K * 300, K)
        ours = Performer(head_dim=K, num_features=K * 300, seed=0).omega_FK
        for omega in (theirs, ours):
            rows = omega[:K] @ omega[:K].T
            torch.testing.assert_close(rows, rows.diagonal().diag(), atol=1e-4, rtol=0)
            assert abs(omega.square().sum(-1).mean() - K) < 0.4

    @pytest.mark.parametrize("pattern", [full, causal], ids=str)
    def test_linear(self, pattern):
        theirs = package("performer_pytorch.performer_pytorch")
        q, k, v = qkv()
        heads = [x.transpose(1, 2) for x in (elu(q) + 1, elu(k) + 1, v)]
        out = theirs.linear_attention(*heads) if pattern is full else theirs.causal_linear_attention_noncuda(*heads, eps=0.0)
        equal(LinearAttention()(q, k, v, pattern), out, (q, k, v))


class TestLinearAttentionTransformer:
    """linear-attention-transformer 0.19.1, whose `linear_attn` is Shen's attention divided by √K. It fills masked keys and values in place. Its
    causal form is another mechanism (and, with buckets of more than one token, leaves out the own bucket): no oracle."""

    def test_efficient(self):
        theirs = package("linear_attention_transformer.linear_attention_transformer")
        q, k, v = qkv()
        out = theirs.linear_attn(*(x.transpose(1, 2) for x in (q, k, v))) * K**0.5
        equal(EfficientAttention()(q, k, v), out, (q, k, v))

    def test_efficient_with_padding(self):
        theirs = package("linear_attention_transformer.linear_attention_transformer")
        q, k, v = qkv()
        mask = torch.arange(L) < torch.tensor([L, 40])[:, None]
        out = theirs.linear_attn(*(x.transpose(1, 2).clone() for x in (q, k, v)), kv_mask=mask) * K**0.5
        equal(EfficientAttention()(q, k, v, lengths([L, 40])), out, (q, k, v))
