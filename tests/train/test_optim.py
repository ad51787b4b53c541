"""Optimisers: LAMB against its formula, decay on matrices only, all of them learn and come back from disk."""

import numpy as np
import pytest
import torch
from tiny import Net
from torch import nn

from regard.errors import BadConfig
from regard.layers import MultiHead
from regard.models import build
from regard.train import (
    OPTIMIZERS,
    Adafactor,
    Adam,
    AdamW,
    Lamb,
    Loss,
    Metric,
    Muon,
    Objective,
    RAdam,
    TrainOptions,
    depths,
    fit,
    layerwise,
)  # fmt: skip
from regard.train.lamb import LambOptimizer
from regard.train.muon import orthogonalize
from regard.train.state import _flat, _unflat


def lamb_in_numpy(w, gradients, lr, beta1, beta2, eps, decay, with_ratio):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        u = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps) + decay * w
        size, length = np.sqrt((w**2).sum()), np.sqrt((u**2).sum())
        w = w - lr * (size / length if with_ratio and size > 0 and length > 0 else 1.0) * u
    return w


@pytest.mark.parametrize("scale", [1.0, 1000.0], ids=["small", "beyond the clamp of public copies"])
def test_lamb_is_its_formula(scale):
    matrix, bias = nn.Parameter(scale * torch.randn(3, 5, dtype=torch.float64)), nn.Parameter(torch.randn(5, dtype=torch.float64))
    layer = nn.Module()
    layer.register_parameter("matrix", matrix)
    layer.register_parameter("bias", bias)
    optimizer = Lamb(betas=(0.8, 0.95), eps=1e-5, weight_decay=0.1).build(layer)
    gradients = [(torch.randn_like(matrix), torch.randn_like(bias)) for _ in range(4)]
    numbers = [[g.numpy() for g in column] for column in zip(*gradients, strict=True)]
    expected_matrix = lamb_in_numpy(matrix.detach().numpy(), numbers[0], 0.02, 0.8, 0.95, 1e-5, 0.1, True)
    expected_bias = lamb_in_numpy(bias.detach().numpy(), numbers[1], 0.02, 0.8, 0.95, 1e-5, 0.0, False)
    for group in optimizer.param_groups:
        group["lr"] = 0.02
    for matrix.grad, bias.grad in gradients:
        optimizer.step()
    np.testing.assert_allclose(matrix.detach().numpy(), expected_matrix, rtol=1e-12)
    np.testing.assert_allclose(bias.detach().numpy(), expected_bias, rtol=1e-12)


def test_lamb_moves_what_is_zero():
    weight = nn.Parameter(torch.zeros(2, 3))
    optimizer = LambOptimizer([weight], lr=0.1, weight_decay=0.0)
    weight.grad = torch.ones(2, 3)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 3), -0.1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 12), (2, 12, 5)], ids=str)
def test_orthogonal_keeps_singular_vectors_and_evens_values(shape):
    u, some, vh = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    x = u @ torch.diag_embed(torch.logspace(-1.3, 0.5, some.shape[-1], dtype=torch.float64).expand_as(some)) @ vh
    turned = u.mT @ orthogonalize(x) @ vh.mT
    values = turned.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(turned, torch.diag_embed(values), rtol=0, atol=1e-10)
    assert values.amin() > 0.5 and values.amax() < 1.3
    assert not orthogonalize(torch.zeros(1, 3, 4)).any()


def test_muon_is_its_formula():
    """Against exact polar factors: the iterations leave singular values between 0.68 and 1.13, so steps agree to that."""
    heads, rate = MultiHead(16, 2, bias=False).double(), 0.1
    optimizer = Muon(momentum=0.9, weight_decay=0.5).build(heads)
    for group in optimizer.param_groups:
        group["lr"] = rate
    weight, momentum = heads.qkv.weight.detach().clone(), torch.zeros(48, 16, dtype=torch.float64)
    for _ in range(3):
        before, gradient = heads.qkv.weight.detach().clone(), torch.randn(48, 16, dtype=torch.float64)
        heads.qkv.weight.grad, heads.out.weight.grad = gradient, torch.randn(16, 16, dtype=torch.float64)
        optimizer.step()
        momentum = 0.9 * momentum + gradient
        for part, was, now in zip(
            (gradient + 0.9 * momentum).split(16), before.split(16), heads.qkv.weight.detach().split(16), strict=True
        ):
            u, _, vh = torch.linalg.svd(part)
            step = (was * (1 - rate * 0.5) - now) / (rate * 0.2 * 4)
            turned = u.mT @ step @ vh.mT
            torch.testing.assert_close(turned, torch.diag(turned.diagonal()), rtol=0, atol=1e-10)
            assert turned.diagonal().min() > 0 and 0.6 < turned.diagonal().median() < turned.diagonal().max() < 1.3
    assert not weight.equal(heads.qkv.weight)


def test_muon_turns_hidden_matrices_only():
    model = build("transformer", {"source_vocab_size": 20, "target_vocab_size": 20, "width": 8, "heads": 2, "depth": (1, 1), "hidden": 16})
    turned, *others = Muon().build(model).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)].rsplit(".", 2)[-2] for p in turned["params"]} == {"qkv", "out", "up", "down"}
    assert turned["parts"][0] == [8, 8, 8]
    assert all(group["parts"] is None for group in others)
    assert sum(len(group["params"]) for group in (turned, *others)) == len(names)


@pytest.mark.parametrize(
    "config", [AdamW(weight_decay=0.5), RAdam(weight_decay=0.5), Lamb(weight_decay=0.5), Adafactor(weight_decay=0.5)], ids=str
)
def test_decay_is_for_matrices(config):
    groups = config.build(Net()).param_groups
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert all(p.ndim >= 2 for p in groups[0]["params"]) and all(p.ndim < 2 for p in groups[1]["params"])
    assert len(groups[0]["params"]) == 1  # tied: once


def test_nothing_to_learn_is_said():
    with pytest.raises(BadConfig, match="frozen"):
        AdamW().build(Net().requires_grad_(False))


def quadratic(net, optimizer, steps, lr):
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(torch.randn(9, 5)) - 1).square().mean()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_learn_and_go_on_as_if_never_stopped(name):
    config, lr = OPTIMIZERS[name](), 0.02
    net = Net(dropout=0.0)
    optimizer = config.build(net)
    before = quadratic(net, optimizer, 1, lr)
    after = quadratic(net, optimizer, 60, lr)
    assert after < 0.8 * before

    other = Net(dropout=0.0)
    other.load_state_dict(net.state_dict())
    resumed = config.build(other)
    _unflat(resumed, other, {key: tensor.clone() for key, tensor in _flat(optimizer, net).items()})
    quadratic(net, optimizer, 3, lr)
    quadratic(other, resumed, 3, lr)
    for (key, one), two in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two), key


def test_bad_configurations_are_refused():
    for bad in (lambda: Adam(betas=(0.9, 1.0)), lambda: AdamW(eps=0.0), lambda: AdamW(weight_decay=-1.0), lambda: Muon(momentum=1.0)):
        with pytest.raises(BadConfig, match=r"betas|eps|weight_decay|momentum"):
            bad()


class Stack(nn.Module):
    """Something before the layers, three layers, something after."""

    def __init__(self):
        super().__init__()
        self.before = nn.Embedding(5, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.after = nn.Linear(4, 2)


def test_layerwise_rates_by_hand():
    rates = layerwise(Stack(), 0.5)
    assert rates["after.weight"] == rates["after.bias"] == 1.0
    assert [rates[f"layers.{n}.bias"] for n in (2, 1, 0)] == [0.5, 0.25, 0.125] and rates["before.weight"] == 0.0625
    assert set(depths(nn.Linear(2, 2)).values()) == {0} and depths(Stack())["layers.1.weight"] == 2
    with pytest.raises(BadConfig, match="decay=0"):
        layerwise(Stack(), 0.0)


@pytest.mark.parametrize("config", [Adam(), AdamW(), RAdam(), Lamb(), Adafactor()], ids=lambda config: type(config).__name__)
def test_rates_make_groups(config):
    model = Stack()
    groups = config.build(model, {"before.weight": 0.1, "after.bias": 0.1}).param_groups
    found = {parameter: group["rate"] for group in groups for parameter in group["params"]}
    assert len(found) == len(list(model.parameters()))
    assert {name for name, parameter in model.named_parameters() if found[parameter] == 0.1} == {"before.weight", "after.bias"}
    assert all(group["rate"] == 1.0 for group in config.build(model).param_groups)


@pytest.mark.parametrize("rates", [{"nothing": 1.0}, {"after.bias": 0.0}, {"after.bias": float("nan")}])
def test_rates_of_what_is_not_there(rates):
    with pytest.raises(BadConfig, match="rates"):
        AdamW().build(Stack(), rates)


def test_the_loop_takes_rates_from_the_task(tmp_path):
    """One step of plain sizes: Adam's first step is the learning rate, whatever the gradient; so each weight moves by its own rate."""

    class Task(Objective):
        metric = Metric("loss", higher=False)

        def batches(self, epoch):
            return [0]

        def batch(self, item, generator):
            return torch.ones(3, 4, dtype=torch.float64)

        def loss(self, model, batch):
            return Loss(model(batch).square().sum(), 3)

        def evaluate(self, model):
            return {"loss": 0.0}

        def rates(self, model):
            return {"0.weight": 0.25}

    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False)).double()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    fit(
        model,
        Task(),
        TrainOptions(steps=1, optimizer="adam", schedule="constant", lr=0.01, warmup_steps=0, clip=0.0),
        tmp_path,
        progress=False,
    )
    moved = [(new.detach() - old).abs() for new, old in zip(model.parameters(), before, strict=True)]
    torch.testing.assert_close(moved[0], torch.full((4, 4), 0.0025, dtype=torch.float64))
    torch.testing.assert_close(moved[1], torch.full((2, 4), 0.01, dtype=torch.float64))
