"""Longformer's layer: the definition with two sets of projections, written out."""

import pytest
import torch

from regard.errors import BadConfig, ShapeError, StateNotSupported
from regard.layers import LongformerHeads, MultiHead, init_xavier
from regard.patterns import causal, full, lengths, to_tokens, window

B, L, D, H = 3, 21, 12, 4


pytestmark = pytest.mark.usefixtures("kernel_path")


@pytest.mark.parametrize("pattern", [full, causal, lengths([L, 9, 2])], ids=str)
@pytest.mark.parametrize("at", [(), (0,), (0, 6, 40)], ids=str)
def test_two_sets_of_projections(at, pattern):
    layer, x = LongformerHeads(D, H, 2, at).double(), torch.randn(B, L, D, dtype=torch.float64, requires_grad=True)
    local, wide = MultiHead(D, H).double(), MultiHead(D, H).double()
    with torch.no_grad():
        for plain, qkv in ((local, layer.qkv), (wide, layer.global_qkv)):
            plain.qkv.load_state_dict(qkv.state_dict())
            plain.out.load_state_dict(layer.out.state_dict())
    chosen = torch.zeros(L, dtype=torch.bool)
    chosen[[n for n in at if n < L]] = True
    expected = torch.where(chosen[:, None], wide(x, pattern=pattern), local(x, pattern=pattern & (window(2) | to_tokens(*at))))
    out = layer(x, pattern=pattern)
    torch.testing.assert_close(out, expected)
    cotangent = torch.randn_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, x, cotangent), torch.autograd.grad(expected, x, cotangent))
    weights = torch.where(
        chosen[:, None], wide.weights(x, pattern=pattern), local.weights(x, pattern=pattern & (window(2) | to_tokens(*at)))
    )
    torch.testing.assert_close(layer.weights(x, pattern=pattern), weights)


def test_begins_as_other_heads_do():
    layer = LongformerHeads(D, H, 2)
    init_xavier(layer)
    assert layer.global_qkv.weight.abs().max() <= (6 / (2 * D)) ** 0.5
    assert layer.global_qkv.weight.abs().max() > 0.8 * (6 / (2 * D)) ** 0.5
    assert (layer.global_qkv.bias == 0).all()


def test_what_it_cannot_do_is_named():
    layer, x = LongformerHeads(D, H, 2), torch.randn(B, L, D)
    with pytest.raises(StateNotSupported, match="LongformerHeads"):
        layer.start(B)
    with pytest.raises(StateNotSupported, match="LongformerHeads"):
        layer(x, state=MultiHead(D, H).start(B))
    with pytest.raises(ShapeError, match="takes no memory"):
        layer(x, x)
    with pytest.raises(BadConfig, match="from the start"):
        LongformerHeads(D, H, 2, (-1,))
