"""Quantized parameters: their error, that rows do not affect each other, and that nothing else changes."""

import pytest
import torch
from torch import nn

from regard.decode import DecoderTokens, GenerationOptions, generate, quantization, quantize, translate
from regard.decode.quantization import Float16Linear, Int8Linear, Matmuls, probe_matmuls
from regard.errors import NotSupported
from regard.models import Translator, build

CONFIG = {"vocab_size": 300, "context_length": 64, "width": 64, "heads": 4, "depth": 3}


def made(name="gpt2"):
    torch.manual_seed(0)
    return build(name, CONFIG).eval()


NOTHING = Matmuls(int8_bits=0, float16=False, packed=False)


@pytest.fixture(params=["packed", "plain"])
def bits(request):
    """Of the int8 matmul; 0 is the fall-back without one."""
    if request.param == "plain":
        return 0
    if not probe_matmuls().int8_bits:
        pytest.skip("this PyTorch has no int8 matmul")
    return probe_matmuls().int8_bits


@pytest.mark.parametrize("bias", [True, False])
def test_products(bits, bias):
    layer = nn.Linear(131, 37, bias)
    x = torch.randn(2, 7, 131) * torch.tensor([0.01, 100.0])[:, None, None]
    light = Int8Linear(layer.weight, layer.bias, bits)
    with torch.no_grad():
        right, got = layer(x), light(x)
    error = (got - right).pow(2).mean((1, 2)).sqrt() / right.std((1, 2))
    assert error.max() < 0.02  # relative to each row's own size
    assert (light.weight - layer.weight).abs().max() <= layer.weight.abs().max() / 127


def test_rows_do_not_see_one_another(bits):
    layer = Int8Linear(torch.randn(40, 64), torch.randn(40), bits)
    x = torch.randn(9, 64) * torch.logspace(-3, 3, 9)[:, None]
    together, alone = layer(x), torch.cat([layer(row[None]) for row in x])
    assert together.equal(alone) if bits else torch.allclose(together, alone, rtol=1e-4, atol=1e-4)


def test_edges(bits):
    layer = Int8Linear(torch.zeros(3, 5), torch.arange(3.0), bits)
    assert layer(torch.zeros(2, 5)).equal(torch.arange(3.0).expand(2, 3))
    assert layer(torch.full((1, 5), 7.0)).equal(torch.arange(3.0)[None])
    assert layer(torch.zeros(0, 5)).shape == (0, 3)
    one = Int8Linear(torch.ones(3, 1), None, bits)
    assert torch.allclose(one(torch.tensor([[2.0]])), torch.full((1, 3), 2.0))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_error_of_a_model(name):
    """The figures of docs/serving.md are of this order: logits off by some per cent of their spread, nearly all best tokens the same."""
    model = made(name)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 2
    before = [parameter.clone() for parameter in model.parameters()]
    light, ids = quantize(model), torch.randint(0, 300, (4, 48))
    with torch.no_grad():
        right, got = model(ids), light(ids)
    assert (got - right).pow(2).mean().sqrt() / right.std() < 0.06
    assert (got.argmax(-1) == right.argmax(-1)).float().mean() > 0.85
    assert all(a.equal(b) for a, b in zip(before, model.parameters(), strict=True))
    assert not any(type(part) is nn.Linear for part in light.modules()) and any(type(part) is nn.Linear for part in model.modules())
    assert light.model.embedding.token.weight is model.embedding.token.weight  # shared, not copied


@pytest.mark.parametrize(("dtype", "bound"), [("float16x2", 3e-6), ("float16", 2e-3)])
def test_error_of_float16(dtype, bound):
    if not probe_matmuls().float16:
        pytest.skip("this PyTorch has no float16 matmul")
    model, ids = made(), torch.randint(0, 300, (4, 48))
    light, state = quantize(model, dtype), model.start(4)
    with torch.no_grad():
        right = made().double()(ids)
        got = torch.cat([light.logits(light.features(part, state=state)) for part in ids.split(6, 1)], 1)  # a few rows at a time
        assert torch.allclose(light(ids), got.float(), atol=100 * bound)
    assert (got - right).pow(2).mean().sqrt() / right.std() < bound
    for part, was in zip(light.modules(), model.modules(), strict=False):
        assert not isinstance(was, nn.Linear) or part is not was
    layer = nn.Linear(31, 17)
    both = Float16Linear(layer.weight, layer.bias, terms=2 if dtype == "float16x2" else 1)
    assert torch.allclose(both.weight, layer.weight, rtol=2**-21 if dtype == "float16x2" else 2**-10, atol=1e-7)
    assert both(torch.zeros(0, 31)).shape == (0, 17) and torch.allclose(both(torch.ones(1, 31)), layer(torch.ones(1, 31)), atol=bound)


def test_steps_agree_with_one_pass():
    light, ids = quantize(made()), torch.randint(0, 300, (3, 20))
    state = light.start(3)
    with torch.no_grad():
        whole = light(ids)
        parts = torch.stack([light.step(ids[:, t], state).logits_BN for t in range(20)], 1)
    assert torch.allclose(whole, parts, atol=0.05)  # rounding of x to 7 bits may tip either way


def test_completes(tokenizer):
    model = made()
    (one,), (two,) = (generate(m, tokenizer, "abc", GenerationOptions(max_tokens=10))[0] for m in (quantize(model), model))
    assert all(len(each.ids) == 10 or each.finish_reason == "stop" for each in (one, two))


@pytest.mark.parametrize("name", ["transformer", "luong"])
@pytest.mark.parametrize(("dtype", "bound"), [("float32_packed", 1e-5), ("float16x2", 1e-4), ("int8", 0.5)])
def test_translators(name, dtype, bound):
    if not (probe_matmuls().float16 and probe_matmuls().packed):
        pytest.skip("this PyTorch has no such matmuls")
    torch.manual_seed(0)
    model = build(
        name, {"source_vocab_size": 50, "target_vocab_size": 50, "width": 32} | ({"tied": "output"} if name == "transformer" else {})
    ).eval()
    light, source_BM, source_n_B = quantize(model, dtype), torch.randint(3, 50, (3, 7)), torch.tensor([7, 4, 5])
    assert isinstance(light, Translator) and light.config is model.config
    states = [m.start(source_BM, source_n_B) for m in (model, light)]
    with torch.no_grad():
        for token_B in torch.randint(3, 50, (4, 3)):
            right, got = (m.step(token_B, state).logits_BN for m, state in zip((model, light), states, strict=True))
            assert 0 < (got - right).abs().max() / right.std() < bound or dtype == "float32_packed"
    assert not any(type(part) is nn.Linear for part in light.modules())
    if dtype == "float32_packed":
        said = [[answers[0].ids for answers in translate(m, source_BM.tolist(), tokens=DecoderTokens())] for m in (model, light)]
        assert said[0] == said[1]


def test_what_is_refused(monkeypatch):
    model = made()
    assert quantize(model, "float32") is model
    with pytest.raises(NotSupported, match="float32"):
        quantize(made().double())
    with pytest.raises(NotSupported, match="expected one of"):
        quantize(model, "float8")
    huge = made()
    huge.norm.weight.data[0] = 1e6
    with pytest.raises(NotSupported, match=r"65504|no float16"):
        quantize(huge, "float16x2")
    monkeypatch.setattr(quantization.machine, "bf16", lambda: quantization.machine.Bf16(False, False, False, "crashes: not used"))
    with pytest.raises(NotSupported, match="crashes"):
        quantize(model, "bfloat16")
    monkeypatch.setattr(quantization.machine, "bf16", lambda: quantization.machine.Bf16(True, False, False, "works"))
    assert next(quantize(model, "bfloat16").parameters()).dtype == torch.bfloat16 and next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
def test_without_private_operators(name, caplog):
    """After an upgrade of PyTorch they may be gone: int8 dequantizes, float32_packed is float32, float16 says so."""
    if name == "gpt2":
        model, inputs = made(), (torch.randint(0, 300, (2, 9)),)
    else:
        model = build(name, {"source_vocab_size": 50, "target_vocab_size": 50, "width": 32}).eval()
        inputs = torch.randint(3, 50, (2, 7)), torch.tensor([7, 4]), torch.randint(3, 50, (2, 5))
    assert quantize(model, "float32_packed", NOTHING) is model and "plain float32" in caplog.text
    with torch.no_grad():
        right, got = model(*inputs), quantize(model, "int8", NOTHING)(*inputs)
    assert 0 < (got - right).pow(2).mean().sqrt() / right.std() < 0.05
    with pytest.raises(NotSupported, match="no float16 matmul"):
        quantize(model, "float16x2", NOTHING)


def test_an_operator_that_is_missing_or_changed_is_not_used(monkeypatch):
    def changed(*_):
        raise TypeError("takes other arguments in this version")

    monkeypatch.setattr(torch, "_make_per_channel_quantized_tensor", changed)
    assert probe_matmuls.__wrapped__().int8_bits == 0
