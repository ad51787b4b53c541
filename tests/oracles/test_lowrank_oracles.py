"""Fewer keys, as others wrote it, weights copied: Linformer, memory-compressed attention, Nyströmformer, the Perceiver."""

import pytest
import torch
from torch import nn

from regard.attention import LinformerAttention, MemoryCompressedAttention, NystromAttention
from regard.layers import Block, CrossBlock, FeedForward, Latents, MultiHead, gelu
from regard.patterns import causal, full, lengths

B, L, H, D = 2, 24, 3, 12


def x(length=L, width=D, seed=0):
    return torch.randn(B, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def shake(module: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for p in module.parameters():
        nn.init.normal_(p, std=0.5)
    return module.double().eval()


def equal(ours, theirs, *wanted, tolerance=1e-10):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    cotangent = torch.randn_like(ours)
    grads = [torch.autograd.grad(out, wanted, cotangent) for out in (ours, theirs)]
    torch.testing.assert_close(*grads, atol=tolerance, rtol=tolerance)


def copy(ours: nn.Module, **parts: torch.Tensor) -> None:
    ours.double().load_state_dict({name.replace("__", "."): value.detach() for name, value in parts.items()}, strict=True)


@pytest.mark.parametrize("keys", [L, 15])
@pytest.mark.parametrize("cross", [False, True])
def test_linformer(keys, cross):
    package = pytest.importorskip("linformer", reason="the oracle for Linformer")
    theirs = shake(package.LinformerSelfAttention(D, L, k=5, heads=H))
    ours = MultiHead(D, H, LinformerAttention(max_length=L, rank=5))
    copy(
        ours,
        qkv__weight=torch.cat([theirs.to_q.weight, theirs.to_k.weight, theirs.to_v.weight]),
        qkv__bias=torch.zeros(3 * D),
        out__weight=theirs.to_out.weight,
        out__bias=theirs.to_out.bias,
        attention__e_HRN=theirs.proj_k.T[None],
        attention__f_HRN=theirs.proj_v.T[None],
    )
    a, b = x(keys), x(keys, seed=2)
    if cross:
        equal(ours(a, b), theirs(a, b), a, b)
    else:
        equal(ours(a), theirs(a), a)


@pytest.mark.parametrize("pattern", [full, causal], ids=str)
def test_memory_compressed(pattern):
    """The package differs: one convolution, with a shift, for keys and values; a null key that all may see; scores over the
    square root of the whole width, not a head's; and shorter inputs are padded at the front. All are set apart here: its kernel is a
    number a place (what ours is on values), no shift, a null key whose score is −∞ in effect, a length of whole blocks.
    """
    package = pytest.importorskip("memory_compressed_attention", reason="the oracle for memory-compressed attention")
    theirs = shake(package.MemoryCompressedAttention(D, H, causal=pattern is causal, compression_factor=3))
    K, a = D // H, x()
    with torch.no_grad():
        c_HS = torch.randn(H, 3, dtype=torch.float64)
        theirs.compress_fn.conv.weight.copy_((c_HS[:, None, None] * torch.eye(K)[..., None]).flatten(0, 1))
        theirs.compress_fn.conv.bias.zero_()
        theirs.to_qkv.weight[:D:K] = 0
        theirs.to_qkv.weight[:D:K, 0] = 1  # the first feature of each head's q is that of x, which is 1
        a[..., 0] = 1
        theirs.null_k.zero_()[..., ::K] = -1e9
        theirs.null_v.zero_()
    q, k, v = (y.unflatten(-1, (H, K)) for y in theirs.to_qkv(a).chunk(3, -1))
    ours = MemoryCompressedAttention(heads=H, head_dim=K)
    copy(ours, w_HSKK=c_HS[..., None, None] * torch.eye(K), c_HS=c_HS)
    out = theirs.to_out(ours(q / H**0.5, k, v, pattern).flatten(-2))
    equal(out, theirs(a), a)


@pytest.mark.parametrize("landmarks", [L, 8, 3])
def test_nystrom(landmarks):
    """Z begins at each matrix's own norm (`init_option`, which the configuration cannot set: it reads it under another name); the
    default takes the largest of the batch."""
    models = pytest.importorskip("transformers.models.nystromformer.modeling_nystromformer", reason="the oracle for Nyströmformer")
    config = models.NystromformerConfig(
        hidden_size=D, num_attention_heads=H, num_landmarks=landmarks, segment_means_seq_len=L, conv_kernel_size=5
    )
    theirs = shake(models.NystromformerSelfAttention(config))
    theirs.init_option = "exact"
    ours = NystromAttention(heads=H, landmarks=landmarks, kernel=5)
    copy(ours, c_HT=theirs.conv.weight[:, 0, :, 0])
    a = x()
    q, k, v = (f(a).unflatten(-1, (H, -1)) for f in (theirs.query, theirs.key, theirs.value))
    equal(ours(q, k, v).flatten(-2), theirs(a)[0], a)


def test_perceiver():
    """One look at the input, then a stack of blocks that is run three times: transformers' encoder. Padding in one row."""
    models = pytest.importorskip("transformers.models.perceiver.modeling_perceiver", reason="the oracle for the Perceiver")
    width, count, inputs = 12, 5, 10
    config = models.PerceiverConfig(
        num_latents=count, d_latents=width, d_model=inputs, num_blocks=3, num_self_attends_per_block=2, num_self_attention_heads=3,
        num_cross_attention_heads=2, cross_attention_shape_for_attention="q", self_attention_widening_factor=2,
        cross_attention_widening_factor=1, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = shake(models.PerceiverEncoder(config, kv_dim=inputs))
    read = CrossBlock(width, MultiHead(width, 2, memory_width=inputs), FeedForward(width, width, gelu), placement="pre")
    blocks = [Block(width, MultiHead(width, 3), FeedForward(width, 2 * width, gelu)) for _ in range(2)]
    ours = Latents(width, count, read, blocks, rounds=3)
    weights = {"latents_CD": torch.randn(count, width, generator=torch.Generator().manual_seed(3))}

    def take(mine, other):
        weights.update({f"{mine}.weight": other.weight, f"{mine}.bias": other.bias})

    def joined(mine, others):
        for part in ("weight", "bias"):
            weights[f"{mine}.{part}"] = torch.cat([getattr(other, part) for other in others])

    layer = theirs.cross_attention
    take("read.around_cross.before", layer.attention.self.layernorm1), take("read.memory_norm", layer.attention.self.layernorm2)
    take("read.cross.q", layer.attention.self.query)
    joined("read.cross.kv", [layer.attention.self.key, layer.attention.self.value])
    pairs = [("read", "cross", layer)]
    for n, layer in enumerate(theirs.self_attends):
        own = layer.attention.self
        take(f"blocks.{n}.around_mixer.before", own.layernorm1), joined(f"blocks.{n}.mixer.qkv", [own.query, own.key, own.value])
        pairs.append((f"blocks.{n}", "mixer", layer))
    for path, look, layer in pairs:
        take(f"{path}.{look}.out", layer.attention.output.dense), take(f"{path}.around_feedforward.before", layer.layernorm)
        take(f"{path}.feedforward.up", layer.mlp.dense1), take(f"{path}.feedforward.down", layer.mlp.dense2)
    ours.double().load_state_dict(weights)

    a, sizes = x(9, inputs), torch.tensor([9, 4])
    mask = torch.zeros(B, 1, 1, 9, dtype=torch.float64).masked_fill(torch.arange(9) >= sizes[:, None, None, None], -torch.inf)
    latents = ours.latents_CD.expand(B, -1, -1)
    expected = theirs(latents, inputs=a, inputs_mask=mask).last_hidden_state
    equal(ours(a, lengths(sizes)), expected, a, ours.latents_CD)
