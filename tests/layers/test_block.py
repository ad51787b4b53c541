"""Blocks, feed-forward parts, norms, embeddings and initialisation, against PyTorch's and transformers' own."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import layers
from regard.attention import LocalMonotonicAttention
from regard.errors import DtypeError, ShapeError, StateNotSupported, UnknownName
from regard.layers import ALiBi, Block, Buckets, Embedding, FeedForward, LayerNorm, MultiHead, NoNorm, RMSNorm, Rotary, Sinusoidal
from regard.patterns import causal, full, lengths

B, L, M, H, D, W = 2, 5, 7, 3, 12, 22  # W: hidden width
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def randn(*shape: int, seed: int = 0, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


@pytest.fixture
def slow_path():
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def attention_weights(name: str, theirs: nn.MultiheadAttention) -> dict[str, Tensor]:
    return {
        f"{name}.qkv.weight": theirs.in_proj_weight,
        f"{name}.qkv.bias": theirs.in_proj_bias,
        f"{name}.out.weight": theirs.out_proj.weight,
        f"{name}.out.bias": theirs.out_proj.bias,
    }


def block_like(theirs: nn.Module, placement: str, decoder: bool) -> Block:
    cross = MultiHead(D, H) if decoder else None
    ours = Block(D, MultiHead(D, H), FeedForward(D, W), cross=cross, placement=placement)
    where = "before" if placement == "pre" else "over"
    parts = ["mixer", "cross", "feedforward"] if decoder else ["mixer", "feedforward"]
    weights = attention_weights("mixer", theirs.self_attn)
    weights |= attention_weights("cross", theirs.multihead_attn) if decoder else {}
    for n, part in enumerate(parts, 1):
        weights |= {f"around_{part}.{where}.{x}": getattr(getattr(theirs, f"norm{n}"), x) for x in ("weight", "bias")}
    for mine, other in (("up", theirs.linear1), ("down", theirs.linear2)):
        weights |= {f"feedforward.{mine}.weight": other.weight, f"feedforward.{mine}.bias": other.bias}
    ours = ours.double()
    ours.load_state_dict(weights)
    return ours


def shake(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


def same(mine: Tensor, other: Tensor, *of: Tensor) -> None:
    close(mine, other)
    weight = randn(*mine.shape, seed=9)
    for a, b in zip(torch.autograd.grad(mine, of, weight), torch.autograd.grad(other, of, weight), strict=True):
        close(a, b)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_encoder_block_is_pytorchs(placement, slow_path):
    theirs = shake(nn.TransformerEncoderLayer(D, H, W, 0.0, batch_first=True, norm_first=placement == "pre").double())
    x, padding = randn(B, L, D, grad=True), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    ours = block_like(theirs, placement, decoder=False)
    same(ours(x, lengths([5, 3])), theirs(x, src_key_padding_mask=padding), x)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_decoder_block_is_pytorchs(placement, slow_path):
    theirs = shake(nn.TransformerDecoderLayer(D, H, W, 0.0, batch_first=True, norm_first=placement == "pre").double())
    x, memory = randn(B, L, D, grad=True), randn(B, M, D, seed=1, grad=True)
    ahead, padding = torch.ones(L, L, dtype=torch.bool).triu(1), torch.arange(M) >= torch.tensor([[7], [4]])
    ours = block_like(theirs, placement, decoder=True)
    expected = theirs(x, memory, tgt_mask=ahead, memory_key_padding_mask=padding)
    same(ours(x, causal, memory, lengths([7, 4])), expected, x, memory)


def test_sandwich_bounds_what_is_added():
    block = Block(D, MultiHead(D, H), None, placement="sandwich", norm=RMSNorm).double()
    x = randn(B, L, D)
    residual = block.around_mixer
    close(block(x, causal), x + residual.after(block.mixer(residual.before(x), pattern=causal)))
    assert len(list(block.children())) == 2


def test_dropout_acts_on_the_change_alone():
    block = Block(D, MultiHead(D, H), FeedForward(D, W, dropout=0.3), dropout=1.0).double()
    x = randn(B, L, D)
    close(block(x), x)  # everything added is dropped
    assert not torch.allclose(block.eval()(x), x)


STREAMS = {
    "none": lambda: None,
    "rotary": Rotary,
    "alibi": lambda: ALiBi(H),
    "buckets": lambda: Buckets(H, buckets=8, furthest=9, causal=True),
}


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("position", STREAMS)
def test_decoder_block_step_by_step(position, placement):
    block = Block(
        D, MultiHead(D, H, position=STREAMS[position]()), FeedForward(D, W), cross=MultiHead(D, H, memory_width=9), placement=placement
    )
    block = shake(block.double())
    x, memory, rows = randn(B, 13, D), randn(B, M, 9, seed=1), torch.tensor([1, 0, 1])
    seen = lengths([7, 4])
    with torch.no_grad():
        whole = block(x, causal, memory, seen)
        state = block.start(B, causal, memory)
        parts = [block(x[:, t : t + 1], causal, None, seen, state) for t in range(8)]
        close(torch.cat(parts, 1), whole[:, :8])
        assert state.length == state["mixer"].length == 8
        state.reorder(rows)
        assert state.batch == 3
        close(block(x[rows, 8:], causal, None, lengths([4, 7, 4]), state), whole[rows, 8:])


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_where_a_block_looks(placement):
    cross = MultiHead(D, H, LocalMonotonicAttention(radius=1))
    block = shake(Block(D, MultiHead(D, H), FeedForward(D, W), cross=cross, placement=placement).double())
    x, memory, seen = randn(B, L, D), randn(B, M, D, seed=1), lengths([7, 4])
    with torch.no_grad():
        whole, mixed = block(x, causal, memory, seen), block.apply_mixer(x, causal)
        close(block.apply_feedforward(block.apply_cross_attention(mixed, memory, seen)), whole)
        weights = block.cross_attention_weights(mixed, memory, seen)
        state = block.start(B, causal, memory)
        for t in range(L):
            here = block.apply_mixer(x[:, t : t + 1], causal, state)
            close(block.cross_attention_weights(here, None, seen, state), weights[:, :, t : t + 1])
            close(block.apply_feedforward(block.apply_cross_attention(here, None, seen, state)), whole[:, t : t + 1])
        assert state.length == L
    with pytest.raises(ShapeError, match="no cross-attention"):
        Block(D, MultiHead(D, H), None).cross_attention_weights(x)


def test_states_pass_on_reset_and_detach():
    block = shake(Block(D, MultiHead(D, H, position=Rotary()), FeedForward(D, W), cross=MultiHead(D, H)).double())
    x, memory = randn(B, 9, D, grad=True), randn(B, M, D, seed=1, grad=True)
    state = block.start(B, causal, memory)
    block(x[:, :4], causal, state=state)
    state.reset(torch.tensor([False, True])).detach()
    later = block(x[:, 4:], causal, state=state)
    close(later[0], block(x, causal, memory)[0, 4:])
    close(later[1], block(x[1:, 4:], causal, memory[1:])[0])
    of_x, of_memory = torch.autograd.grad(later.sum(), (x, memory), allow_unused=True)
    assert of_memory is None and not of_x[:, :4].any() and of_x[:, 4:].any()


def test_blocks_refuse_what_does_not_fit():
    plain, decoder = Block(D, MultiHead(D, H), None), Block(D, MultiHead(D, H), None, cross=MultiHead(D, H))
    x = torch.ones(B, L, D)
    with pytest.raises(ShapeError, match="given no memory"):
        decoder(x)
    with pytest.raises(ShapeError, match="no cross-attention"):
        plain(x, full, x)
    with pytest.raises(ShapeError, match="no cross-attention"):
        plain.start(B, causal, x)
    with pytest.raises(UnknownName, match="did you mean 'pre'"):
        Block(D, MultiHead(D, H), None, placement="prer")
    with pytest.raises(StateNotSupported, match="States of its start"):
        plain(x, causal, state=plain.mixer.start(B))
    with pytest.raises(StateNotSupported, match="Identity"):
        Block(D, nn.Identity(), None).start(B)


# -- feed-forward --------------------------------------------------------------------------------------------------


def test_swiglu_is_that_of_llama():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    theirs = LlamaMLP(LlamaConfig(hidden_size=D, intermediate_size=W, num_attention_heads=H)).double()
    ours = FeedForward(D, W, layers.swiglu, bias=False).double()
    ours.load_state_dict({"up.weight": torch.cat([theirs.gate_proj.weight, theirs.up_proj.weight]), "down.weight": theirs.down_proj.weight})
    x = randn(B, L, D, grad=True)
    same(ours(x), theirs(x), x)


def test_activations():
    from transformers.activations import ACT2FN

    x = randn(B, L, 10)
    a, b = x[..., :5], x[..., 5:]
    for name, theirs in {
        "relu": "relu",
        "silu": "silu",
        "gelu": "gelu",
        "gelu_tanh": "gelu_pytorch_tanh",
        "gelu_quick": "quick_gelu",
    }.items():
        close(getattr(layers, name)(x), ACT2FN[theirs](x))
    for name, gate in {"glu": torch.sigmoid, "reglu": F.relu, "geglu": F.gelu, "swiglu": F.silu}.items():
        close(getattr(layers, name)(x), gate(a) * b)
    close(layers.glu(x), F.glu(torch.cat([b, a], -1)))  # PyTorch gates with the second half


def test_feedforward_by_hand():
    ours, x = FeedForward(D, W, layers.gelu, dropout=0.5).double().eval(), randn(B, L, D)
    up, down = ours.up, ours.down
    close(ours(x), F.gelu(x @ up.weight.T + up.bias) @ down.weight.T + down.bias)
    assert sum(p.numel() for p in FeedForward(D, W, layers.geglu).parameters()) == 2 * (D * W + W) + W * D + D
    with pytest.raises(ShapeError, match=r"width 12 was given x of shape \(2, 5, 13\)"):
        ours(randn(B, L, 13))


# -- norms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_is_that_of_llama(dtype):
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    theirs, ours, x = LlamaRMSNorm(D, 1e-5).to(dtype), RMSNorm(D, 1e-5).to(dtype), 300 * randn(B, L, D).to(dtype)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)


def test_norms():
    x = randn(B, L, D)
    close(RMSNorm(D, 1e-6).double()(x), F.rms_norm(x, (D,), eps=1e-6))
    assert NoNorm(D)(x) is x
    assert LayerNorm is nn.LayerNorm
    assert RMSNorm(D)(1e4 * torch.ones(2, D, dtype=torch.float16)).isfinite().all()


# -- embedding -----------------------------------------------------------------------------------------------------


def test_embedding_by_hand():
    N, width = 17, 10
    ours = Embedding(N, width, Sinusoidal(width), scaled=True, padding=3).double()
    ids = torch.tensor([[1, 3, 16], [0, 2, 2]])
    x = ours(ids, at=4)
    for b in range(2):
        for t in range(3):
            place = [f((4 + t) / 10_000 ** (2 * c / width)) for c in range(width // 2) for f in (math.sin, math.cos)]
            close(x[b, t], ours.token.weight[ids[b, t]] * width**0.5 + torch.tensor(place, dtype=torch.float64))
    assert not ours.token.weight[3].any()
    each = ours(ids, at=torch.tensor([[0, 1, 0], [4, 5, 6]]))
    close(each[1], x[1])
    close(each[0, 2], ours(ids)[0, 0] - ours.token.weight[1] * width**0.5 + ours.token.weight[16] * width**0.5)
    assert [tuple(p.shape) for p in ours.parameters()] == [(N, width)]


def test_embedding_refuses():
    ours = Embedding(17, 10)
    with pytest.raises(ShapeError, match=r"got \(3,\)"):
        ours(torch.tensor([1, 2, 3]))
    with pytest.raises(DtypeError, match="float32"):
        ours(torch.ones(2, 3))
    with pytest.raises(ShapeError, match="width 8 cannot be added"):
        Embedding(17, 10, Sinusoidal(8))(torch.ones(2, 3, dtype=torch.long))


# -- initialisation ------------------------------------------------------------------------------------------------


def model() -> nn.Module:
    torch.manual_seed(0)
    block = Block(96, MultiHead(96, 4, kv_heads=2, position=Buckets(4)), FeedForward(96, 160), norm=RMSNorm)
    return nn.ModuleDict({"embedding": Embedding(300, 96, padding=5), "block": shake(block), "norm": shake(nn.LayerNorm(96))})


def settled(m: nn.Module) -> None:
    block = m["block"]
    for linear in (block.mixer.qkv, block.mixer.out, block.feedforward.up, block.feedforward.down):
        assert not linear.bias.any()
    assert not m["embedding"].token.weight[5].any()
    assert (m["norm"].weight == 1).all() and not m["norm"].bias.any() and (block.around_mixer.before.weight == 1).all()


def std(x: Tensor) -> float:
    return float(x.detach().std())


def test_xavier_sees_q_k_v_apart():
    m = model()
    layers.init_xavier(m)
    settled(m)
    q, k, v = m["block"].mixer.projections()
    for part, fan in ((q, 96 + 96), (k, 96 + 48), (v, 96 + 48), (m["block"].feedforward.up.weight, 96 + 160)):
        bound = (6 / fan) ** 0.5
        assert 0.97 * bound < float(part.detach().abs().max()) <= bound and abs(std(part) / (bound / 3**0.5) - 1) < 0.05
    assert abs(std(m["embedding"].token.weight) * 96**0.5 - 1) < 0.05


def test_gpt_shrinks_what_is_added_to_the_stream():
    m = model()
    layers.init_gpt(m, depth=8)
    settled(m)
    block = m["block"]
    for weight in (block.mixer.qkv.weight, block.feedforward.up.weight, m["embedding"].token.weight):
        assert abs(std(weight) / 0.02 - 1) < 0.05
    for weight in (block.mixer.out.weight, block.feedforward.down.weight):
        assert abs(std(weight) / 0.005 - 1) < 0.05


def test_truncated_has_no_tails():
    m = model()
    layers.init_truncated(m)
    settled(m)
    for weight in (m["block"].mixer.qkv.weight, m["embedding"].token.weight):
        assert float(weight.detach().abs().max()) <= 0.04 and abs(std(weight) / (0.02 * 0.88) - 1) < 0.05
