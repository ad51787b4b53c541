"""torch.export: the exported program gives what the module gives, for other inputs and, with a dynamic length, for other lengths."""

import pytest
import torch
from torch import nn

from regard import MECHANISMS, Block, FeedForward, MultiHead, SoftmaxAttention, capture, causal, full, lengths, tokens, window
from regard.errors import CaptureNotSupported, NotSupported, StateNotSupported
from regard.layers import ALiBi, Rotary
from regard.models import build

B, L, D, H = 2, 9, 16, 2
LENGTH = torch.export.Dim("length", min=2, max=16)
DEPENDS_ON_NUMBERS = {
    "adaptive_span",
    "sinkhorn",
    "sortcut",
}  # a span that is a parameter, and a sorting that is repeated until it converges

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")  # PyTorch's own, while it traces


class Under(nn.Module):
    """A layer under a pattern, as a function of tensors alone."""

    def __init__(self, layer, pattern=causal):
        super().__init__()
        self.layer, self.pattern = layer, pattern

    def forward(self, x):
        return self.layer(x, self.pattern)


def export(module, x, **options):
    return torch.export.export(module.eval(), (x,), strict=False, **options).module()


def assert_same(module, x, others, seed=0, **options):
    program = export(module, x, **options)
    for other in others:
        torch.manual_seed(seed)  # some mechanisms draw
        expected = module(other)
        torch.manual_seed(seed)
        torch.testing.assert_close(program(other), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pattern", [full, causal, causal & (window(3) | tokens(0)), causal & lengths([9, 5])], ids=str)
def test_heads_and_block(pattern):
    torch.manual_seed(0)
    x, other = torch.randn(2, B, L, D)
    assert_same(Under(MultiHead(D, H, kv_heads=1), pattern), x, [other])
    assert_same(Under(Block(D, MultiHead(D, H, position=Rotary()), FeedForward(D, 8)), pattern), x, [other])


@pytest.mark.parametrize("position", [None, Rotary(), Rotary(layout="interleaved", part=4), ALiBi(H)], ids=lambda p: type(p).__name__)
def test_dynamic_length(position):
    torch.manual_seed(0)
    layer = Under(Block(D, MultiHead(D, H, position=position), FeedForward(D, 8)), causal & window(3))
    others = [torch.randn(B, length, D) for length in (2, 9, 16)]
    assert_same(layer, torch.randn(B, L, D), others, dynamic_shapes={"x": {1: LENGTH}})


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.facts.name)
def test_mechanisms(mechanism):
    """Every mechanism for one length; three depend on numbers, and say so in one sentence."""
    torch.manual_seed(0)
    pattern = causal if mechanism.supports(causal) else full
    layer = Under(MultiHead(D, H, mechanism.sized(heads=H, head_dim=D // H, length=16)), pattern)
    x, other = torch.randn(2, B, 16, D)
    if mechanism.facts.name in DEPENDS_ON_NUMBERS:
        with pytest.raises(NotSupported, match=r"cannot be exported .* depends on numbers"):
            export(layer, x)
    else:
        assert_same(layer, x, [other])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_language_models(name, strict):
    torch.manual_seed(0)
    kv = {"kv_heads": 1, "head_dim": 8} if name == "llama" else {}
    model = build(name, width=D, depth=2, heads=H, vocab_size=50, context_length=16, **kv).eval()
    ids = torch.randint(50, (B, L))
    shapes = None if strict else {"ids_BL": {1: LENGTH}}
    program = torch.export.export(model, (ids,), strict=strict, dynamic_shapes=shapes).module()
    for length in (9,) if strict else (2, 9, 16):
        other = torch.randint(50, (B, length))
        torch.testing.assert_close(program(other), model(other))


def test_nothing_of_an_export_stays():
    """Tables that are kept between calls hold numbers afterwards, not the export's placeholders."""
    x = torch.randn(1, 700, D)
    layer = Under(MultiHead(D, H, position=Rotary()), causal & window(3))
    export(layer, x)
    assert layer(x).isfinite().all()


def test_what_cannot_be_exported():
    attention = SoftmaxAttention()

    class Step(nn.Module):
        def forward(self, x):
            return attention(x, x, x, causal, state=attention.start(len(x), causal))

    x = torch.randn(B, L, H, 4)
    with pytest.raises(StateNotSupported, match="leave `state` out"):
        export(Step(), x)
    heads = Under(MultiHead(D, H))
    with pytest.raises(CaptureNotSupported, match="leave the capture before exporting"), capture(heads):
        export(heads, torch.randn(B, L, D))
