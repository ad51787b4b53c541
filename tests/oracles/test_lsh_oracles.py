"""LSH attention against transformers' Reformer and reformer-pytorch, weights copied and buckets given."""

import pytest
import torch

from regard.attention import LSHAttention
from regard.attention.helpers import average, softmax_where
from regard.layers import MultiHead
from regard.patterns import causal, full, lengths

B, L, H, K, C = 2, 32, 3, 8, 4


def reformer(rounds: int, is_decoder: bool, before: int = 1):
    transformers = pytest.importorskip("transformers", reason="Reformer is in transformers")
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = transformers.ReformerConfig(
        hidden_size=H * K, num_attention_heads=H, attention_head_size=K, num_hashes=rounds, num_buckets=8, lsh_attn_chunk_length=C,
        lsh_num_chunks_before=before, lsh_num_chunks_after=0, is_decoder=is_decoder, lsh_attention_probs_dropout_prob=0.0, hash_seed=11,
    )  # fmt: skip
    torch.manual_seed(0)
    return LSHSelfAttention(config).double().eval()


def ours_like(theirs, rounds: int) -> MultiHead:
    layer = MultiHead(H * K, H, LSHAttention(rounds=rounds, chunk=C, buckets=8), shared_qk=True, bias=False).double()
    layer.qkv.weight.data = torch.cat([theirs.query_key.weight, theirs.value.weight]).detach().clone()
    layer.out.weight.data = torch.eye(H * K).double()
    return layer


def flat(bucket_BHRL):
    """As theirs: rounds one after the other, their numbers apart."""
    offsets = torch.arange(bucket_BHRL.shape[2])[:, None] * 9
    return (bucket_BHRL + offsets).flatten(2)


@pytest.mark.parametrize("pattern", [full, causal, lengths([L, 13]), causal & lengths([L, 13])], ids=str)
def test_one_round_of_transformers(pattern):
    """Outputs and gradients. Their first chunk looks at the last one, ours at itself only, as theirs with no chunk before."""
    x = torch.randn(B, L, H * K, dtype=torch.float64, requires_grad=True)
    mask = None if "lengths" not in str(pattern) else (torch.arange(L) < torch.tensor([[L], [13]])).long()
    theirs = [reformer(1, "causal" in str(pattern), before) for before in (1, 0)]
    ours = ours_like(theirs[0], 1)
    q, *_ = ours._given(x, None, full, None)
    bucket = ours.attention.hash(q, pattern)
    place = flat(bucket).argsort(dim=-1, stable=True).argsort(-1)  # (B, H, L)
    out = ours(x, pattern=pattern).unflatten(-1, (H, K))
    for other, rows in zip(theirs, (place >= C, place < C), strict=True):
        if mask is not None:
            rows = rows & mask.bool()[:, None]
        expected = other(x, attention_mask=mask, buckets=flat(bucket)).hidden_states.unflatten(-1, (H, K))
        rows = rows.transpose(1, 2).unsqueeze(-1)
        # theirs allows for 1e-6 in the length of keys, and lets a position that sees others have exp(-1e5) of itself
        torch.testing.assert_close(out * rows, expected * rows, atol=1e-5, rtol=1e-5)
        cotangent = torch.randn_like(out) * rows
        gradients = [torch.autograd.grad(y, x, cotangent, retain_graph=True)[0] for y in (out, expected)]
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rounds", [2, 3, 4])
@pytest.mark.parametrize("pattern", [full, causal], ids=str)
def test_several_rounds_see_the_union_of_what_theirs_sees(pattern, rounds):
    """Which pairs their chunks hold, round by round, and a plain softmax over the union.

    Not their own sum of rounds: it counts a pair as often as it is met, and lets the first chunk of a round look at the last
    of the round before, both unlike the paper (eq. 6).
    """
    x = torch.randn(B, L, H * K, dtype=torch.float64, requires_grad=True)
    theirs = [reformer(1, pattern is causal, before) for before in (1, 0)]
    ours = ours_like(theirs[0], rounds)
    q, k, v, *_ = ours._given(x, None, full, None)
    bucket = ours.attention.hash(q)
    seen = torch.zeros(B, H, L, L, dtype=torch.bool)
    for r in range(rounds):
        order = flat(bucket[:, :, r : r + 1]).argsort(dim=-1, stable=True)
        for other, chunks in zip(theirs, (slice(1, None), slice(0, 1)), strict=True):
            found = other(x, buckets=flat(bucket[:, :, r : r + 1]), output_attentions=True).attention_probs[:, :, chunks] > 0
            i = order.unflatten(-1, (-1, C))
            j = torch.cat([i[:, :, :-1], i[:, :, 1:]], -1) if chunks.start else i[:, :, :1]
            i = i[:, :, chunks]
            where = (i.unsqueeze(-1) * L + j.unsqueeze(-2)).flatten(2)
            heads = torch.arange(B * H).view(B, H, 1) * L * L
            seen.view(-1)[(where + heads)[found.flatten(2)]] = True
    lonely = seen.sum(-1, keepdim=True) > 1
    seen = seen & ~(torch.eye(L, dtype=torch.bool) & lonely)
    expected = average(softmax_where(torch.einsum("blhk,bmhk->bhlm", q, k / k.norm(dim=-1, keepdim=True)), seen), v)
    torch.testing.assert_close(ours.attention(q, k, v, pattern), expected, atol=1e-10, rtol=1e-10)


def test_the_hash_function_of_transformers():
    """With its own random matrices in place of ours."""
    theirs = reformer(4, False)
    ours = ours_like(theirs, 4)
    x = torch.randn(B, L, H * K, dtype=torch.float64)
    q, *_ = ours._given(x, None, full, None)
    expected = theirs._hash_vectors(q.transpose(1, 2), 4, None).view(B, H, 4, L) % 8
    torch.manual_seed(11)
    turns = iter(torch.randn(H, K, 4, 4, dtype=torch.float64).unbind(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", lambda *shape, generator: next(turns))
        assert ours.attention.hash(q).equal(expected)


@pytest.mark.parametrize("is_causal", [False, True])
def test_reformer_pytorch_where_it_sees_everything(is_causal):
    """Two chunks that look at each other are dense. Its scores are divided by √K: ours with such a query.

    With more rounds it cannot be an oracle: its first chunk looks into another round, and pairs count several times.
    """
    package = pytest.importorskip("reformer_pytorch", reason="the other implementation of Reformer")
    theirs = package.LSHAttention(bucket_size=L // 2, n_hashes=1, causal=is_causal)
    x, v = torch.randn(2, B, L, K, dtype=torch.float64, requires_grad=True)
    expected = theirs(x, v)[0]
    ours = LSHAttention(rounds=3, chunk=L)(x[:, :, None] * K**-0.5, x[:, :, None], v[:, :, None], causal if is_causal else full)[:, :, 0]
    torch.testing.assert_close(ours, expected, atol=1e-8, rtol=1e-8)
    cotangent = torch.randn_like(ours)
    torch.testing.assert_close(*(torch.autograd.grad(out, (x, v), cotangent) for out in (ours, expected)), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("is_causal", [False, True])
def test_reformer_pytorch_chunk_by_chunk(is_causal):
    """Its own buckets, one round, all rows but those of the first chunk."""
    package = pytest.importorskip("reformer_pytorch", reason="the other implementation of Reformer")
    theirs = package.LSHAttention(bucket_size=C, n_hashes=1, causal=is_causal)
    x, v = torch.randn(2, B, L, K, dtype=torch.float64)
    expected, _, bucket = theirs(x, v)
    ours = LSHAttention(rounds=1, chunk=C)
    ours.hash = lambda q, pattern=full: bucket.view(B, 1, 1, L)
    out = ours(x[:, :, None] * K**-0.5, x[:, :, None], v[:, :, None], causal if is_causal else full)[:, :, 0]
    rows = bucket.view(B, L).argsort(dim=-1, stable=True).argsort(-1) >= C
    torch.testing.assert_close(out[rows], expected[rows], atol=1e-8, rtol=1e-8)
