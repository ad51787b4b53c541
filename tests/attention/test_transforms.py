"""Mechanisms under torch.compile, torch.func and autograd: what the contract cannot show. The checks themselves are in `regard.testing`."""

import shutil

import pytest
import torch

from regard.attention import (
    DeltaNet,
    GaussianWindow,
    HardAttention,
    LinearAttention,
    LSHAttention,
    RoutingAttention,
    SigmoidAttention,
    SoftmaxAttention,
)
from regard.attention.helpers import average
from regard.errors import NotSupported, StateNotSupported
from regard.patterns import causal


def tensors(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in "qkv"]


@pytest.mark.slow
@pytest.mark.filterwarnings(  # PyTorch says so of itself
    "ignore:`torch.jit:DeprecationWarning", "ignore:The .grad attribute:UserWarning", "ignore:The distutils package:DeprecationWarning"
)
@pytest.mark.skipif(not shutil.which("g++") and not shutil.which("clang++"), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("mechanism", [SoftmaxAttention, LinearAttention, LSHAttention], ids=lambda m: m.facts.name)
def test_compiled_by_inductor(mechanism):
    attention, (q, k, v) = mechanism(), tensors(2, 9, 2, 8)

    def layer(q, k, v):
        return attention(q.sin() * 2, k, v, causal).tanh().sum()

    for one, two in zip(*(torch.autograd.grad(f(q, k, v), (q, k, v)) for f in (torch.compile(layer), layer)), strict=True):
        torch.testing.assert_close(one, two)


def test_kernels_are_not_traced():
    """Attention is one call between two graphs, however many tiles it has."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    torch.compiler.reset()
    attention = SoftmaxAttention()
    torch.compile(lambda q, k, v: attention(q * 2, k, v, causal) * 2, backend=backend)(*torch.randn(3, 1, 600, 2, 8))
    assert len(graphs) == 2 and sum(graphs) < 20


def test_second_derivatives_by_the_definition():
    """A gradient penalty: refused by the kernel, also where other paths lead to the inputs; right by the definition, to finite differences."""
    q, k, v = tensors(1, 4, 2, 3)
    for attention in (SigmoidAttention(), LSHAttention(), DeltaNet()):
        with pytest.raises(NotSupported, match=r"create_graph=True.*weights"):
            gates = {"gates_BMHE": torch.zeros(1, 4, 2, attention.gates, dtype=torch.float64)} if attention.gates else {}
            torch.autograd.grad(attention.double()(q, k, v, causal, **gates).sin().sum() + q.square().sum(), q, create_graph=True)
    assert torch.autograd.gradgradcheck(lambda q, k, v: average(SoftmaxAttention().weights(q, k, causal), v), (q, k, v))


def test_functional_hessian_and_per_example_gradients():
    attention, (q, k, v) = SoftmaxAttention(), tensors(3, 4, 2, 3)
    hessian = torch.func.hessian(lambda q: attention(q, k, v, causal).sin().sum())(q)
    assert hessian.shape == (*q.shape, *q.shape)
    first = torch.autograd.grad(average(attention.weights(q, k, causal), v).sin().sum(), q, create_graph=True)[0]
    torch.testing.assert_close(hessian[0, 1, 1, 2], torch.autograd.grad(first[0, 1, 1, 2], q)[0])
    own = torch.func.vmap(torch.func.grad(lambda q, k, v: attention(q[None], k[None], v[None]).sum()))(q, k, v)
    torch.testing.assert_close(own, torch.autograd.grad(attention(q, k, v).sum(), q)[0])


def test_what_torch_func_cannot_do_is_said():
    q, k, v = (x.detach() for x in tensors(2, 6, 2, 8))
    for attention in (RoutingAttention(heads=2, head_dim=8, clusters=2, size=3).double(), LSHAttention(), HardAttention()):
        try:
            out = torch.func.vmap(lambda q, k, v, attention=attention: attention(q[None], k[None], v[None])[0])(q, k, v)
        except NotSupported as error:
            assert type(attention).__name__ in str(error) and "\n" not in str(error)
        else:
            torch.testing.assert_close(out, attention(q, k, v))
    state = SoftmaxAttention().start(2)
    with pytest.raises(StateNotSupported, match=r"torch\.func"):
        torch.func.grad(lambda q: SoftmaxAttention()(q, k, v, causal, state=state).sum())(q)


@pytest.mark.parametrize("needs", ["q", "k", "v"])
def test_a_stream_with_frozen_projections(needs):
    """Keys that need no gradient are part of the graph of queries that do: a cache must not write over them."""
    q, k, v = (x.detach() for x in tensors(2, 7, 2, 4))
    {"q": q, "k": k, "v": v}[needs].requires_grad_()
    state = SoftmaxAttention().start(2)
    steps = [SoftmaxAttention()(q[:, t : t + 1], k[:, t : t + 1], v[:, t : t + 1], causal, state=state) for t in range(7)]
    state.reorder(torch.tensor([1, 0]))
    whole = SoftmaxAttention()(q, k, v, causal)
    wanted = {"q": q, "k": k, "v": v}[needs]
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), wanted)[0] for out in (torch.cat(steps, 1), whole)))


def test_a_cache_does_not_copy_its_past_without_gradients():
    attention, state = SoftmaxAttention(), SoftmaxAttention().start(1)
    with torch.no_grad():
        attention(*torch.randn(3, 1, 20, 2, 4), causal, state=state)
        attention(*torch.randn(3, 1, 1, 2, 4), causal, state=state)
        before = state.keys_and_values()[0].data_ptr()
        attention(*torch.randn(3, 1, 1, 2, 4), causal, state=state)
        assert state.keys_and_values()[0].data_ptr() == before


@pytest.mark.parametrize(
    "mechanism", [LSHAttention, lambda: RoutingAttention(heads=2, head_dim=8), lambda: GaussianWindow(heads=2, head_dim=8)]
)
def test_a_nan_shows_where_it_is(mechanism):
    """Kept to its head, but not hidden."""
    attention, (q, k, v) = mechanism(), torch.randn(3, 2, 40, 2, 8)
    v[1, 3, 0] = torch.nan
    out = attention(q, k, v)
    assert out[1, :, 0].isnan().any() and out[0].isfinite().all() and out[1, :, 1].isfinite().all()
