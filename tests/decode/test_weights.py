"""int8 weights: how far they are off, that rows stay apart, and that nothing else changes."""

import pytest
import torch
from torch import nn

from regard.decode import Options, Tokens, complete, lightened, quantised, translate
from regard.decode import weights as weights_
from regard.decode.weights import Int8Linear
from regard.errors import NotSupported
from regard.models import build

CONFIG = {"vocab": 300, "length": 64, "width": 64, "heads": 4, "depth": 3}


def made(name="gpt2"):
    torch.manual_seed(0)
    return build(name, CONFIG).eval()


@pytest.fixture(params=["packed", "plain"])
def form(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(weights_, "_bits", lambda: 0)
    elif not weights_._bits():
        pytest.skip("this PyTorch has no int8 products")
    return request.param


@pytest.mark.parametrize("bias", [True, False])
def test_products(form, bias):
    layer = nn.Linear(131, 37, bias)
    x = torch.randn(2, 7, 131) * torch.tensor([0.01, 100.0])[:, None, None]
    light = Int8Linear(layer.weight, layer.bias)
    with torch.no_grad():
        right, got = layer(x), light(x)
    error = (got - right).pow(2).mean((1, 2)).sqrt() / right.std((1, 2))
    assert error.max() < 0.02  # relative to each row's own size
    assert (light.weight - layer.weight).abs().max() <= layer.weight.abs().max() / 127


def test_rows_do_not_see_one_another(form):
    layer = Int8Linear(torch.randn(40, 64), torch.randn(40))
    x = torch.randn(9, 64) * torch.logspace(-3, 3, 9)[:, None]
    together, alone = layer(x), torch.cat([layer(row[None]) for row in x])
    assert together.equal(alone) if form == "packed" else torch.allclose(together, alone, rtol=1e-4, atol=1e-4)


def test_edges(form):
    layer = Int8Linear(torch.zeros(3, 5), torch.arange(3.0))
    assert layer(torch.zeros(2, 5)).equal(torch.arange(3.0).expand(2, 3))
    assert layer(torch.full((1, 5), 7.0)).equal(torch.arange(3.0)[None])
    assert layer(torch.zeros(0, 5)).shape == (0, 3)
    one = Int8Linear(torch.ones(3, 1), None)
    assert torch.allclose(one(torch.tensor([[2.0]])), torch.full((1, 3), 2.0))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_error_of_a_model(name):
    """The figures of docs/serving.md are of this order: logits off by some per cent of their spread, nearly all best tokens the same."""
    model = made(name)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 2
    before = [parameter.clone() for parameter in model.parameters()]
    light, ids = quantised(model), torch.randint(0, 300, (4, 48))
    with torch.no_grad():
        right, got = model(ids), light(ids)
    assert (got - right).pow(2).mean().sqrt() / right.std() < 0.06
    assert (got.argmax(-1) == right.argmax(-1)).float().mean() > 0.85
    assert all(a.equal(b) for a, b in zip(before, model.parameters(), strict=True))
    assert not any(type(part) is nn.Linear for part in light.modules()) and any(type(part) is nn.Linear for part in model.modules())
    assert light.model.embedding.token.weight is model.embedding.token.weight  # shared, not copied


@pytest.mark.parametrize(("weights", "bound"), [("halves", 3e-6), ("float16", 2e-3)])
def test_error_of_halves(weights, bound):
    if not weights_._has_halves():
        pytest.skip("this PyTorch has no products of float16 weights")
    model, ids = made(), torch.randint(0, 300, (4, 48))
    light, state = lightened(model, weights), model.begin(4)
    with torch.no_grad():
        right = made().double()(ids)
        got = torch.cat([light.logits(light.features(part, state=state)) for part in ids.split(6, 1)], 1)  # a few rows at a time
        assert torch.allclose(light(ids), got.float(), atol=100 * bound)
    assert (got - right).pow(2).mean().sqrt() / right.std() < bound
    for part, was in zip(light.modules(), model.modules(), strict=False):
        assert not isinstance(was, nn.Linear) or part is not was
    layer = nn.Linear(31, 17)
    both = weights_.HalfLinear(layer.weight, layer.bias, both=weights == "halves")
    assert torch.allclose(both.weight, layer.weight, rtol=2**-21 if weights == "halves" else 2**-10, atol=1e-7)
    assert both(torch.zeros(0, 31)).shape == (0, 17) and torch.allclose(both(torch.ones(1, 31)), layer(torch.ones(1, 31)), atol=bound)


def test_steps_agree_with_one_pass():
    light, ids = quantised(made()), torch.randint(0, 300, (3, 20))
    state = light.begin(3)
    with torch.no_grad():
        whole = light(ids)
        parts = torch.stack([light.step(ids[:, t], state).logits_BN for t in range(20)], 1)
    assert torch.allclose(whole, parts, atol=0.05)  # rounding of x to 7 bits may tip either way


def test_completes(tokenizer):
    model = made()
    (one,), (two,) = (complete(m, tokenizer, "abc", Options(most=10))[0] for m in (quantised(model), model))
    assert len(one.ids) == len(two.ids) == 10 or one.finish == "stop"


@pytest.mark.parametrize("name", ["transformer", "luong"])
@pytest.mark.parametrize(("weights", "bound"), [("packed", 1e-5), ("halves", 1e-4), ("int8", 0.5)])
def test_translators(name, weights, bound):
    if not (weights_._has_halves() and weights_._has_packed()):
        pytest.skip("this PyTorch has no such products")
    torch.manual_seed(0)
    model = build(
        name, {"source_vocab": 50, "target_vocab": 50, "width": 32} | ({"tied": "output"} if name == "transformer" else {})
    ).eval()
    light, source_BM, source_n_B = lightened(model, weights), torch.randint(3, 50, (3, 7)), torch.tensor([7, 4, 5])
    assert type(light) is type(model)
    states = [m.begin(source_BM, source_n_B) for m in (model, light)]
    with torch.no_grad():
        for token_B in torch.randint(3, 50, (4, 3)):
            right, got = (m.step(token_B, state).logits_BN for m, state in zip((model, light), states, strict=True))
            assert 0 < (got - right).abs().max() / right.std() < bound or weights == "packed"
    assert not any(type(part) is nn.Linear for part in light.modules())
    if weights == "packed":
        said = [[answers[0].ids for answers in translate(m, source_BM.tolist(), tokens=Tokens())] for m in (model, light)]
        assert said[0] == said[1]


def test_what_is_refused(monkeypatch):
    model = made()
    assert lightened(model, "float32") is model
    with pytest.raises(NotSupported, match="float32"):
        quantised(made().double())
    with pytest.raises(NotSupported, match="known are"):
        lightened(model, "float8")
    huge = made()
    huge.norm.weight.data[0] = 1e6
    with pytest.raises(NotSupported, match=r"65504|no products"):
        lightened(huge, "halves")
    monkeypatch.setattr(weights_.kernels, "bf16", lambda: weights_.kernels.Bf16(False, False, False, "crashes: not used"))
    with pytest.raises(NotSupported, match="crashes"):
        lightened(model, "bfloat16")
    monkeypatch.setattr(weights_.kernels, "bf16", lambda: weights_.kernels.Bf16(True, False, False, "works"))
    assert next(lightened(model, "bfloat16").parameters()).dtype == torch.bfloat16 and next(model.parameters()).dtype == torch.float32
