"""What users of PyTorch's attention pass: patterns as text and in the second place, masks, arrays, other orders of axes."""

import numpy as np
import pytest
import torch

from regard import Block, FeedForward, MultiHead, SoftmaxAttention, capture, causal, full, keep, lengths, per_head, tokens, window
from regard.errors import BadPattern, CaptureNotSupported, DtypeError, PatternNotSupported, ShapeError, UnknownArgument, UnknownName
from regard.layers import LongformerHeads
from regard.patterns import behind

B, L, D, H = 2, 9, 12, 3
TEXT = "causal & window(2)"


@pytest.fixture
def x_BLD():
    torch.manual_seed(0)
    return torch.randn(B, L, D)


@pytest.fixture
def heads():
    torch.manual_seed(1)
    return MultiHead(D, H)


def test_a_pattern_in_the_second_place_is_the_pattern(x_BLD, heads):
    expected = heads(x_BLD, pattern=causal)
    assert heads(x_BLD, causal).equal(expected) and heads(x_BLD, "causal").equal(expected)
    assert heads.weights(x_BLD, causal).equal(heads.weights(x_BLD, pattern=causal))
    assert Block(D, heads, None)(x_BLD, causal).equal(Block(D, heads, None)(x_BLD, "causal"))
    longformer = LongformerHeads(D, H, 2)
    assert longformer(x_BLD, causal).equal(longformer(x_BLD, pattern=causal))
    with pytest.raises(PatternNotSupported, match="combine them with &"):
        heads(x_BLD, causal, window(2))


def test_patterns_as_text(x_BLD, heads):
    attention, (q, k, v) = SoftmaxAttention(), torch.randn(3, B, L, H, 4)
    pattern = causal & window(2)
    assert attention(q, k, v, TEXT).equal(attention(q, k, v, pattern))
    assert attention.weights(q, k, TEXT).equal(attention.weights(q, k, pattern))
    assert SoftmaxAttention.supports(TEXT)
    assert heads(x_BLD, pattern=TEXT).equal(heads(x_BLD, pattern=pattern))
    block = Block(D, heads, FeedForward(D, D), cross=MultiHead(D, H))
    assert block(x_BLD, TEXT, x_BLD, "window(1)").equal(block(x_BLD, pattern, x_BLD, window(1)))
    within = MultiHead(D, H, within=TEXT)
    assert str(within.within) == TEXT and within.weights(x_BLD).equal(within.weights(x_BLD, pattern=pattern))
    state = block.start(B, TEXT, x_BLD)
    assert block(x_BLD[:, :1], TEXT, state=state).shape == (B, 1, D)
    assert causal & "tokens(0)" == causal & tokens(0) and "causal" & window(2) == pattern and "causal" | window(2) == causal | window(2)
    assert per_head("causal", window(1)) == per_head(causal, window(1)) and behind("causal", 2) == behind(causal, 2)
    with pytest.raises(UnknownName, match="did you mean 'causal'"):
        attention(q, k, v, "casual")
    with pytest.raises(BadPattern, match="not part of a pattern"):
        attention(q, k, v, "causal.__class__")


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (True, "for is_causal=True pass causal"),
        (None, "pass full"),
        (torch.ones(L, L, dtype=torch.bool), r"keep\(mask\)"),
        (torch.ones(B, L, dtype=torch.bool), r"keep\(mask\[:, None, None, :\]\)"),
        (np.ones((L, L), dtype=bool), r"keep\(torch\.as_tensor\(mask\)\)"),
        (torch.zeros(L, L), "bias=mask"),
        (3, "causal & window"),
    ],
    ids=repr,
)
def test_other_things_than_patterns(given, advice, x_BLD, heads):
    with pytest.raises(BadPattern, match=advice):
        heads(x_BLD, pattern=given)
    with pytest.raises(BadPattern, match=advice):
        SoftmaxAttention()(*torch.randn(3, B, L, H, 4), given)
    with pytest.raises(BadPattern, match=advice):
        full & given


@pytest.mark.parametrize(
    ("name", "advice"), [("is_causal", "causal"), ("attn_mask", "keep"), ("key_padding_mask", "lengths"), ("x", "help")]
)
def test_arguments_of_pytorch(name, advice, x_BLD, heads):
    for call in (heads, Block(D, heads, None), LongformerHeads(D, H)):
        with pytest.raises(UnknownArgument, match=f"takes no argument {name}; .*{advice}"):
            call(x_BLD, **{name: True})
    with pytest.raises(UnknownArgument, match=advice):
        SoftmaxAttention()(*torch.randn(3, B, L, H, 4), **{name: True})


def test_padding_masks_in_keep():
    """(batch, keys) is no mask of pairs: what is too small for that says how padding is written."""
    q, k, v = torch.randn(3, B, L, H, 4)
    mask_BM = torch.arange(L) < torch.tensor([9, 5])[:, None]
    with pytest.raises(ShapeError, match=r"keep\(mask\[:, None, None, :\]\)"):
        SoftmaxAttention()(q, k, v, keep(mask_BM))
    one, two = (SoftmaxAttention()(q, k, v, p) for p in (keep(mask_BM[:, None, None, :]), lengths([9, 5])))
    torch.testing.assert_close(one, two)


def test_arrays_and_other_things(heads):
    x = np.zeros((B, L, D))
    with pytest.raises(DtypeError, match=r"ndarray; torch\.as_tensor"):
        heads(x)
    with pytest.raises(DtypeError, match=r"ndarray.*torch\.as_tensor"):
        SoftmaxAttention()(x, x, x)
    with pytest.raises(CaptureNotSupported, match="got int"), capture(3):
        pass


def test_heads_before_length():
    """Tensors in the order of PyTorch's function: where the shapes do not fit, the hint names the order."""
    q, k = torch.randn(2, 4, 9, 16), torch.randn(2, 4, 7, 16)
    with pytest.raises(ShapeError, match=r"\(batch, heads, length, size\), pass x\.transpose\(1, 2\), or call regard\.sdpa"):
        SoftmaxAttention()(q, k, k)
    with pytest.raises(ShapeError) as refused:
        SoftmaxAttention()(q, torch.randn(2, 9, 5, 16), torch.randn(2, 9, 5, 16))
    assert "sdpa" not in str(refused.value)  # it would not fit either
