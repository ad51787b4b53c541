"""MultiHead: PyTorch's own module with the same weights, shared heads, other sequences, step by step."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from regard.attention import LocalMonotonicAttention, SoftmaxAttention, StepState
from regard.attention.helpers import average
from regard.errors import ShapeError, StateNotSupported
from regard.layers import ALiBi, Buckets, CrossCache, MultiHead, RelativeXL, RMSNorm, Rotary
from regard.look import capture
from regard.patterns import causal, full, lengths, local_causal, tokens, window

B, L, M, H, K, D, E = 2, 5, 7, 3, 4, 12, 10  # E: width of the other sequence
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def randn(*shape: int, seed: int = 0, grad: bool = True) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def twins(memory_width: int | None = None) -> tuple[nn.MultiheadAttention, MultiHead]:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(D, H, kdim=memory_width, vdim=memory_width, batch_first=True).double()
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = MultiHead(D, H, memory_width=memory_width).double()
    if memory_width is None:
        ours.load_state_dict(
            {
                "qkv.weight": theirs.in_proj_weight,
                "qkv.bias": theirs.in_proj_bias,
                "out.weight": theirs.out_proj.weight,
                "out.bias": theirs.out_proj.bias,
            }
        )
    else:
        ours.load_state_dict(
            {
                "q.weight": theirs.q_proj_weight,
                "q.bias": theirs.in_proj_bias[:D],
                "kv.weight": torch.cat([theirs.k_proj_weight, theirs.v_proj_weight]),
                "kv.bias": theirs.in_proj_bias[D:],
                "out.weight": theirs.out_proj.weight,
                "out.bias": theirs.out_proj.bias,
            }
        )
    return theirs, ours


def same(mine: Tensor, other: Tensor, mine_of: list[Tensor], other_of: list[Tensor]) -> None:
    """Outputs and gradients agree."""
    close(mine, other)
    weight = randn(*mine.shape, seed=9, grad=False)
    for a, b in zip(torch.autograd.grad(mine, mine_of, weight), torch.autograd.grad(other, other_of, weight), strict=True):
        close(a, b)


@pytest.mark.parametrize("case", ["full", "causal", "padded"])
def test_self_attention_is_pytorchs(case):
    theirs, ours = twins()
    x = randn(B, L, D)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    ahead = torch.ones(L, L, dtype=torch.bool).triu(1)
    pattern, masks = {
        "full": (full, {}),
        "causal": (causal, {"attn_mask": ahead}),
        "padded": (lengths([5, 3]), {"key_padding_mask": padding}),
    }[case]
    expected, _ = theirs(x, x, x, need_weights=False, **masks)
    mine = [x, ours.qkv.weight, ours.qkv.bias, ours.out.weight, ours.out.bias]
    others = [x, theirs.in_proj_weight, theirs.in_proj_bias, theirs.out_proj.weight, theirs.out_proj.bias]
    same(ours(x, pattern=pattern), expected, mine, others)


@pytest.mark.parametrize("memory_width", [None, E])
def test_cross_attention_is_pytorchs(memory_width):
    theirs, ours = twins(memory_width)
    x, memory = randn(B, L, D), randn(B, M, memory_width or D, seed=1)
    padding = torch.arange(M) >= torch.tensor([[7], [4]])
    expected, _ = theirs(x, memory, memory, key_padding_mask=padding, need_weights=False)
    same(ours(x, memory, lengths([7, 4])), expected, [x, memory, ours.out.weight], [x, memory, theirs.out_proj.weight])


def test_memory_is_projected_once_and_follows_beams():
    _, ours = twins(E)
    x, memory = randn(B, L, D), randn(B, M, E, seed=1)
    remembered, rows = ours.remember(memory), torch.tensor([1, 0, 1])
    close(ours(x, remembered, lengths([7, 4])), ours(x, memory, lengths([7, 4])))
    calls = []
    ours.kv.register_forward_hook(lambda *_: calls.append(1))
    for t in range(L):
        close(ours(x[:, t : t + 1], remembered), ours(x, remembered)[:, t : t + 1])
    assert not calls
    assert isinstance(remembered.reorder(rows), CrossCache) and remembered.batch == 3
    close(ours(x[rows], remembered), ours(x[rows], memory[rows]))
    assert not remembered.detach().k_BMHK.requires_grad


def test_a_memory_that_is_x_is_looking_at_oneself():
    for options in ({}, {"shared_qk": True}, {"position": Rotary()}, {"qk_norm": RMSNorm}, {"kv_heads": 1, "value_dim": 5}):
        ours, x = MultiHead(D, H, **options).double(), randn(B, L, D)
        close(ours(x, x, causal), ours(x, pattern=causal))


def test_shared_key_heads_are_repeated_ones():
    """Heads in runs of neighbours, 0 0 0 1 1 1: not 0 1 0 1 0 1."""
    few, many = MultiHead(24, 6, kv_heads=2, head_dim=4, value_dim=5).double(), MultiHead(24, 6, head_dim=4, value_dim=5).double()
    q, k, v = few.qkv.weight.split(few.sizes)
    q_, k_, v_ = few.qkv.bias.split(few.sizes)
    widen = [lambda w, size=size: w.unflatten(0, (2, size)).repeat_interleave(3, 0).flatten(0, 1) for size in (4, 5)]
    many.load_state_dict(
        {
            "qkv.weight": torch.cat([q, widen[0](k), widen[1](v)]),
            "qkv.bias": torch.cat([q_, widen[0](k_), widen[1](v_)]),
            "out.weight": few.out.weight,
            "out.bias": few.out.bias,
        }
    )
    x = randn(B, L, 24)
    close(few(x, pattern=causal), many(x, pattern=causal))


def test_queries_and_keys_may_share_a_projection():
    shared, apart = MultiHead(D, H, shared_qk=True, bias=False).double(), MultiHead(D, H, bias=False).double()
    qk, v = shared.qkv.weight.split([D, D])
    apart.load_state_dict({"qkv.weight": torch.cat([qk, qk, v]), "out.weight": shared.out.weight})
    x, memory = randn(B, L, D), randn(B, M, D, seed=1)
    close(shared(x), apart(x))
    close(shared(x, memory), apart(x, memory))


def test_norm_of_queries_and_keys_bounds_scores_and_comes_before_positions():
    ours = MultiHead(D, H, qk_norm=RMSNorm, position=Rotary()).double()
    seen = {}
    ours.attention.register_forward_pre_hook(lambda _, given: seen.update(q=given[0], k=given[1]))
    ours(100 * randn(B, L, D))
    for x in seen.values():  # turned after the norm, so the root mean square is still one
        close(x.square().mean(-1), torch.ones(B, L, H, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def test_parameter_counts():
    def count(m: nn.Module) -> int:
        return sum(p.numel() for p in m.parameters())

    assert count(MultiHead(512, 8)) == 4 * (512 * 512 + 512) == count(nn.MultiheadAttention(512, 8))
    assert count(MultiHead(24, 6, kv_heads=2, head_dim=4, value_dim=5, out_width=7, bias=False)) == 24 * (24 + 8 + 10) + 30 * 7
    assert count(MultiHead(D, H, memory_width=E, bias=False)) == D * D + 2 * E * D + D * D
    assert count(MultiHead(D, H, qk_norm=RMSNorm, bias=False)) == 4 * D * D + 2 * K


POSITIONS = {
    "none": lambda: None,
    "rotary": Rotary,
    "alibi": lambda: ALiBi(H),
    "buckets": lambda: Buckets(H, buckets=8, furthest=9, causal=True),
    "xl": lambda: RelativeXL(D, H),
}


def streaming(position: str, **options) -> MultiHead:
    torch.manual_seed(1)
    layer = MultiHead(D, H, position=POSITIONS[position](), **options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("pattern", [causal, local_causal(3), causal & (window(2) | tokens(0))], ids=str)
@pytest.mark.parametrize("position", POSITIONS)
def test_step_by_step_is_one_pass(position, pattern, grad):
    layer, x = streaming(position, qk_norm=RMSNorm), randn(B, 29, D, grad=False)
    with torch.set_grad_enabled(grad):
        whole, state, start, parts = layer(x, pattern=pattern), layer.start(B, pattern), 0, []
        for size in (4, 1, 1, 7, 2, *[1] * 14):  # beyond the point where a rolling cache forgets
            parts.append(layer(x[:, start : start + size], pattern=pattern, state=state))
            start += size
        close(torch.cat(parts, 1), whole)
    assert state.length == 29


@pytest.mark.parametrize("position", POSITIONS)
def test_beams_and_new_beginnings(position):
    layer, x, rows = streaming(position), randn(B, 11, D, grad=False), torch.tensor([1, 1, 0])
    with torch.no_grad():
        state = layer.start(B)
        layer(x[:, :6], pattern=causal, state=state)
        close(layer(x[rows, 6:], pattern=causal, state=state.reorder(rows)), layer(x[rows], pattern=causal)[:, 6:])
        state = layer.start(B)
        layer(x[:, :6], pattern=causal, state=state)
        out = layer(x[:, 6:], pattern=causal, state=state.reset(torch.tensor([0])))
        close(out[0], layer(x[:1, 6:], pattern=causal)[0])  # distances alone matter, so a later beginning is a beginning
        close(out[1], layer(x[1:], pattern=causal)[0, 6:])


def test_a_memory_ending_in_x_keeps_distances():
    """The recurrence of Transformer-XL: [old; x] as memory is the end of one pass over both."""
    layer, x = streaming("xl"), randn(B, 9, D)
    close(layer(x[:, 4:], x, causal), layer(x, pattern=causal)[:, 4:])


def test_calls_the_mechanism_as_the_contract_says():
    seen = []

    class Watched(SoftmaxAttention):
        def __call__(self, *given, **named):
            seen.append((len(given), named))
            return super().__call__(*given, **named)

    MultiHead(D, H, Watched())(torch.randn(B, L, D), pattern=causal)
    assert seen == [(8, {})]


class Dimmed(SoftmaxAttention):
    """Every key shines as its two gates say."""

    gates = 2

    def _weights(self, q_BLHK, k_BMHK, call):
        light_BHM = torch.sigmoid(call.gates_BMHE.sum(-1)).mT
        share = q_BLHK.shape[2] // light_BHM.shape[1]
        return super()._weights(q_BLHK, k_BMHK, call) * light_BHM.repeat_interleave(share, 1).unsqueeze(2)

    def _forward(self, q_BLHK, k_BMHK, v_BMHV, call):
        return average(self._weights(q_BLHK, k_BMHK, call), v_BMHV)


@pytest.mark.parametrize("memory_width", [None, E])
def test_gates_are_projected_from_what_keys_are(memory_width):
    layer = MultiHead(D, H, Dimmed(), kv_heads=1, memory_width=memory_width).double()
    assert layer.gates.weight.shape == (layer.kv_heads * 2, memory_width or D) and layer.gates.bias is not None
    x, memory = randn(B, L, D), randn(B, M, memory_width or D)
    out, weights = layer(x, memory), layer.weights(x, memory)
    remembered = layer.remember(memory)
    light_BMH = torch.sigmoid(layer.gates(memory).unflatten(-1, (layer.kv_heads, 2)).sum(-1))
    close((weights[0, 0] / light_BMH[0, :, 0]).sum(-1), torch.ones(L).double())
    close(out, layer.out(average(weights, remembered.v_BMHV).flatten(-2)))
    close(layer(x, remembered), out)
    close(layer.weights(x, remembered), weights)
    rows = torch.tensor([1, 1, 0])
    close(layer(x[rows], remembered.reorder(rows).detach()), out[rows])
    assert not remembered.gates_BMHE.requires_grad
    with capture(layer, dtype=torch.float64) as maps:
        layer(x, memory)
    close(maps.all[0].weights_BHLM, weights.detach())
    if memory_width is None:
        close(layer(x), layer.out(average(layer.weights(x), layer.remember(x).v_BMHV).flatten(-2)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.float()(x.float(), memory.float()).dtype == torch.bfloat16


def test_without_gates_nothing_is_made():
    assert MultiHead(D, H).gates is None and "gates.weight" not in MultiHead(D, H).state_dict()


@pytest.mark.parametrize("position", POSITIONS)
def test_mixed_precision(position):
    layer, x = streaming(position, qk_norm=RMSNorm).float(), randn(B, L, D).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = layer(x, pattern=causal)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), layer(x, pattern=causal), rtol=0.1, atol=0.1)


def test_modules_copy_and_save():
    layer = streaming("buckets")
    assert set(layer.state_dict()) == {"qkv.weight", "qkv.bias", "out.weight", "out.bias", "position.table.weight"}
    x = randn(B, L, D)
    close(copy.deepcopy(layer)(x), layer(x))


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: MultiHead(13, 3), "13 cannot be split into 3 heads"),
        (lambda: MultiHead(12, 6, kv_heads=4), "6 query heads cannot share 4"),
        (lambda: MultiHead(12, 6, kv_heads=3, shared_qk=True), "shared_qk"),
        (lambda: MultiHead(D, H)(torch.ones(B, L, D + 1)), r"x_BLD must be \(batch, length, 12\), got \(2, 5, 13\)"),
        (lambda: MultiHead(D, H)(torch.ones(L, D)), r"got \(5, 12\)"),
        (lambda: MultiHead(D, H, memory_width=E)(torch.ones(B, L, D), torch.ones(B, M, D)), r"memory_BMD must be \(batch, length, 10\)"),
        (lambda: MultiHead(D, H, memory_width=E)(torch.ones(B, L, D)), "pass the memory"),
        (lambda: MultiHead(D, H, position=ALiBi(4))(torch.ones(B, L, D)), "4 heads was given 3"),
        (lambda: MultiHead(D, H, position=RelativeXL(D, 2))(torch.ones(B, L, D)), "2 heads of size 6"),
        (lambda: MultiHead(9, 3, position=Rotary())(torch.ones(B, L, 9)), "multiple of 2"),
    ],
)
def test_wrong_sizes_are_refused(make, says):
    with pytest.raises(ShapeError, match=says):
        make()


def test_a_growing_state_takes_no_memory():
    layer, x = MultiHead(D, H), torch.ones(B, L, D)
    with pytest.raises(StateNotSupported, match="remember"):
        layer(x, x, state=layer.start(B))


def test_a_state_that_does_not_grow_takes_a_memory():
    """As mechanisms have that walk along a memory."""

    class Walking(SoftmaxAttention):
        facts = replace(SoftmaxAttention.facts, state=StepState)

        def _forward(self, q, k, v, call):
            call.state.length += q.shape[1]
            return super()._forward(q, k, v, call)

    layer, state = MultiHead(D, H, Walking()), StepState(B)
    layer(torch.ones(B, L, D), layer.remember(torch.ones(B, M, D)), state=state)
    assert state.length == L


def test_weights_are_those_of_the_same_call():
    ours = MultiHead(D, H, memory_width=E, position=ALiBi(H)).double()
    x, memory, seen = randn(B, L, D), randn(B, M, E, seed=1), lengths([4, 7])
    kept = ours.remember(memory)
    weights = ours.weights(x, kept, seen)
    assert weights.shape == (B, H, L, M)
    close(ours.out(torch.einsum("bhlm,bmhv->blhv", weights, kept.v_BMHV).flatten(-2)), ours(x, memory, seen))


def test_mechanisms_that_count_go_along_a_memory_and_not_along_themselves():
    ours = MultiHead(D, H, LocalMonotonicAttention(radius=1)).double()
    x, memory, seen = randn(B, L, D), randn(B, M, D, seed=1), lengths([4, 7])
    kept, state = ours.remember(memory), ours.start(B, full)
    whole, weights = ours(x, memory, seen), ours.weights(x, memory, seen)
    for t in range(L):
        here = x[:, t : t + 1]
        close(ours.weights(here, kept, seen, state), weights[:, :, t : t + 1])  # asked twice, and the state stays
        close(ours.weights(here, kept, seen, state), weights[:, :, t : t + 1])
        close(ours(here, kept, seen, state), whole[:, t : t + 1])
    with pytest.raises(StateNotSupported, match="LocalMonotonicAttention decodes step by step in cross-attention only"):
        ours(x[:, :1], state=ours.start(B))
    plain = MultiHead(D, H).double()
    with pytest.raises(StateNotSupported, match="capture"):
        plain.weights(x[:, :1], kept, full, plain.start(B))


def test_a_bias_for_q_k_v_alone():
    for memory_width in (None, 10):
        for bias, qkv_bias, expected in ((True, None, (True, True)), (False, True, (True, False)), (True, False, (False, True))):
            layer = MultiHead(12, 3, bias=bias, qkv_bias=qkv_bias, memory_width=memory_width)
            projections = [layer.qkv] if memory_width is None else [layer.q, layer.kv]
            assert all((part.bias is not None) == expected[0] for part in projections) and (layer.out.bias is not None) == expected[1]


def test_each_head_is_normed_before_the_heads_are_joined():
    torch.manual_seed(0)
    layer, x = MultiHead(12, 3, value_dim=5, head_norm=RMSNorm), torch.randn(2, 7, 12)
    heads = layer.head_outputs(x)
    assert heads.shape == (2, 7, 3, 5) and layer.head_norm.weight.shape == (5,)
    normed = heads / (heads.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(layer(x), layer.out(normed.flatten(-2)))


@pytest.mark.parametrize("name", ["softmax", "adaptive_span", "location", "linear"])
def test_beams_that_share_a_memory(name):
    """They are read as further queries of one memory only by mechanisms to which a query's position does not matter."""
    layer = MultiHead(D, H, name).double()
    memory, x = randn(3, 8, D), randn(6, 1, D)
    shared = layer.remember(memory).reorder(torch.arange(3).repeat_interleave(2))
    assert shared.share == 2
    close(layer(x, shared), layer(x, memory.repeat_interleave(2, 0)))
