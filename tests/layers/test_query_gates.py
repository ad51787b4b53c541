"""Gates per query token and head: what a mechanism reads of each query besides q, from MultiHead to the rows of a call."""

import pytest
import torch

from regard import MultiHead, attention, capture, causal, lengths, models
from regard.attention import Attention, Call, Facts, Paper
from regard.attention.helpers import share_heads, softmax_where
from regard.compare.visit import Subject
from regard.errors import ShapeError
from regard.layers.packing import Packing

B, L, M, D, H, G = 3, 7, 5, 24, 4, 2


class QueryGated(Attention):
    """Softmax attention whose weights each query scales per head, by one gate on the output and one temperature."""

    facts = Facts(
        name="query_gated_test",
        paper=Paper("test", 2025, "none"),
        formula="σ(g) softmax(e^t q·k) v",
        time="L·M·K",
        memory="L·K",
        normalised=False,
    )
    query_gates = 2

    def _weights(self, q_BLHK, k_BMHK, call: Call):
        gate_BHL1, heat_BHL1 = call.query_gates_BLHE.transpose(1, 2).split(1, -1)
        scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK, share_heads(k_BMHK, q_BLHK.shape[2])) * heat_BHL1.exp()
        return gate_BHL1.sigmoid() * softmax_where(scores_BHLM + call.scores_bias(), call.mask())


@pytest.fixture
def heads():
    torch.manual_seed(0)
    return MultiHead(D, H, QueryGated(), kv_heads=G).double()


def expected(heads, x_BLD, memory_BMD, pattern):
    """The formula, from the projections: each query head has gates of its own, though key heads are shared."""
    gates_BLHE = heads.query_gates(x_BLD).unflatten(-1, (H, 2))
    q, k, v = heads.qkv.weight.split(heads.sizes)
    b_q, b_k, b_v = heads.qkv.bias.split(heads.sizes)
    q = (x_BLD @ q.T + b_q).unflatten(-1, (H, -1))
    k, v = ((memory_BMD @ w.T + b).unflatten(-1, (G, -1)).repeat_interleave(H // G, 2) for w, b in ((k, b_k), (v, b_v)))
    scores = torch.einsum("blhk,bmhk->bhlm", q * gates_BLHE[..., 1:].exp(), k)
    mask = pattern.mask(x_BLD.shape[1], memory_BMD.shape[1])
    out = torch.einsum("bhlm,bmhv->blhv", softmax_where(scores, mask), v) * gates_BLHE[..., :1].sigmoid()
    return heads.out(out.flatten(-2))


def test_each_query_head_has_gates_of_its_own(heads):
    x = torch.randn(B, L, D, dtype=torch.float64)
    torch.testing.assert_close(heads(x, pattern=causal), expected(heads, x, x, causal))
    assert heads.query_gates.out_features == H * 2 and heads.gates is None


def test_step_by_step_and_captured(heads):
    x = torch.randn(B, L, D, dtype=torch.float64)
    state = heads.start(B)
    with capture(heads, dtype=torch.float64) as maps:
        steps = torch.cat([heads(x[:, t : t + 1], pattern=causal, state=state) for t in range(L)], 1)
    torch.testing.assert_close(steps, heads(x, pattern=causal))
    torch.testing.assert_close(maps.all[-1].weights_BHLM, heads.weights(x, pattern=causal)[:, :, -1:])


def test_cross_attention_takes_them_from_the_queries(heads):
    x, memory = torch.randn(B, L, D, dtype=torch.float64), torch.randn(B, M, D, dtype=torch.float64)
    pattern = lengths([5, 2, 1])
    torch.testing.assert_close(heads(x, memory, pattern), expected(heads, x, memory, pattern))


def test_beams_that_share_a_memory_keep_their_own(heads):
    memory, x = torch.randn(B, M, D, dtype=torch.float64), torch.randn(2 * B, 1, D, dtype=torch.float64)
    shared = heads.remember(memory).reorder(torch.arange(B).repeat_interleave(2))
    assert shared.share == 2
    torch.testing.assert_close(heads(x, shared), heads(x, memory.repeat_interleave(2, 0)))


def test_without_padding(heads):
    x, n_B = torch.randn(B, L, D, dtype=torch.float64), torch.tensor([7, 3, 5])
    packing = Packing.of(n_B, L)
    padded = heads(x, pattern=lengths(n_B))
    torch.testing.assert_close(heads(packing.pack(x), pattern=lengths(n_B), packing=packing), packing.pack(padded))


def test_rows_of_a_call_bring_theirs():
    gates = torch.randn(B, L, H, 2)
    call = Call(causal, None, None, L, L, torch.device("cpu"), query_gates_BLHE=gates)
    assert call.of_rows(torch.tensor([4, 1])).query_gates_BLHE.equal(gates[:, [4, 1]])


def test_a_model_swaps_to_it_and_back(monkeypatch):
    monkeypatch.setitem(attention.registered, "query_gated_test", QueryGated)
    model = models.build("gpt2", vocab_size=11, width=16, heads=2, depth=1, context_length=8)
    gated = model.with_attention("query_gated_test")
    (heads,) = gated.attentions().values()
    assert heads.query_gates.weight.shape == (2 * 2, 16)
    assert gated(torch.arange(6)[None]).shape == (1, 6, 11)
    (heads,) = gated.with_attention("softmax").attentions().values()
    assert heads.query_gates is None


def test_what_is_missing_is_named():
    q = k = torch.randn(B, L, H, 8)
    with pytest.raises(
        ShapeError, match=r"2 more numbers per query token and head: expected query_gates_BLHE of shape \(3, 7, 4, 2\), got nothing"
    ):
        QueryGated()(q, k, k)


def test_it_can_be_measured():
    for projections in (False, True):
        subject = Subject(f"{__name__}:QueryGated", 16, 8, 2, 1, True, "float32", projections, 0)
        whole, state = subject(), subject.module.start(1)
        torch.testing.assert_close(torch.cat([subject(slice(t, t + 1), state) for t in range(16)], 1), whole)
