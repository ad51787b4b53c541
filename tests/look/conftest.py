"""A small stack of attention layers, maps with known weights, and a browser."""

import pytest
import torch
from tests.look.browser import Browser
from torch import Tensor, nn

from regard.attention import Attention, SoftmaxAttention
from regard.look import Map
from regard.patterns import causal

B, L, H, WIDTH = 2, 7, 3, 15  # all different: a swapped axis cannot pass by luck


class Layer(nn.Module):
    def __init__(self, attention: Attention, width: int = WIDTH, heads: int = H):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.attention, self.heads = attention, heads
        self.seen: list[Tensor] = []  # v and the attention's output of the latest call

    def forward(self, x, memory=None, pattern=causal, bias=None, state=None):
        memory = x if memory is None else memory
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)) for f, y in ((self.q, x), (self.k, memory), (self.v, memory)))
        out = self.attention(q, k, v, pattern, bias, state=state)
        self.seen = [q.detach(), k.detach(), v.detach(), out.detach()]
        return x + self.out(out.flatten(-2))


class Stack(nn.Module):
    def __init__(self, depth: int = 3, make=SoftmaxAttention, **sizes):
        super().__init__()
        self.blocks = nn.ModuleList(Layer(make(), **sizes) for _ in range(depth))

    def forward(self, x, pattern=causal, bias=None, states=None):
        for n, block in enumerate(self.blocks):
            x = block(x, pattern=pattern, bias=bias, state=None if states is None else states[n])
        return x


THREE = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]


def make_map(weights, **fields):
    weights = torch.tensor(weights)
    weights = weights[(None,) * (4 - weights.dim())]
    _, heads, rows, columns = weights.shape
    made = dict(layer="layer", mechanism="softmax", call=0, run=0, queries=rows, normalised=True)
    made |= dict(heads=tuple(range(heads)), rows=tuple(range(rows)), columns=tuple(range(columns)), weights_BHLM=weights)
    return Map(**(made | fields))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Stack()


@pytest.fixture
def x():
    return torch.randn(B, L, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def browser():
    found = Browser()
    yield found
    found.close()
