"""Axial layers: who can know of whom, and against dense attention on every row and column."""

import pytest
import torch

from regard.errors import PatternNotSupported, StateNotSupported
from regard.layers import Axial, Block, CausalAxial, MultiHead
from regard.patterns import causal, full

B, ROWS, COLUMNS, D, H = 2, 3, 5, 12, 4
L = ROWS * COLUMNS


def knows(layer, pattern) -> torch.Tensor:
    """(L, L): whether the output at i changes with the input at j."""
    x = torch.randn(1, L, D, dtype=torch.float64, requires_grad=True)
    out = layer(x, pattern=pattern)
    return torch.stack([torch.autograd.grad(out[:, i].sum(), x, retain_graph=True)[0][0].abs().sum(-1) > 1e-12 for i in range(L)])


def test_two_looks_reach_everything():
    assert knows(Axial(D, H, COLUMNS).double(), full).all()


def test_causal_halves_see_above_and_to_the_left():
    i, j = torch.arange(L)[:, None], torch.arange(L)
    above_left = (j // COLUMNS <= i // COLUMNS) & (j % COLUMNS <= i % COLUMNS)
    assert knows(Axial(D, H, COLUMNS).double(), causal).equal(above_left)


def test_causal_axial_sees_exactly_what_came_before():
    assert knows(CausalAxial(D, H, COLUMNS).double(), causal).equal(torch.ones(L, L).tril().bool())


def test_rows_then_columns_is_dense_attention_on_each():
    layer, x = Axial(D, H, COLUMNS).double(), torch.randn(B, L, D, dtype=torch.float64)
    plain = {name: MultiHead(D, H).double() for name in ("rows", "columns")}
    for name, part in plain.items():
        part.load_state_dict(getattr(layer, name).state_dict())
    grid = x.unflatten(1, (ROWS, COLUMNS))
    grid = torch.stack([plain["rows"](row) for row in grid.unbind(1)], 1)
    grid = torch.stack([plain["columns"](column) for column in grid.unbind(2)], 2)
    torch.testing.assert_close(layer(x), grid.flatten(1, 2))


def test_in_a_block_and_with_a_short_last_row():
    x = torch.randn(B, L - 2, D)
    for mixer, pattern in ((Axial(D, H, COLUMNS), causal), (CausalAxial(D, H, COLUMNS), causal)):
        block = Block(D, mixer, None)
        out = block(x, pattern)
        changed = x.clone()
        changed[:, 7:] += 1
        assert out[:, :7].equal(block(changed, pattern)[:, :7])
        with pytest.raises(StateNotSupported, match=type(mixer).__name__):
            block.start(B)
        with pytest.raises(StateNotSupported, match=type(mixer).__name__):
            mixer(x, pattern, MultiHead(D, H).start(B))
    with pytest.raises(PatternNotSupported, match="CausalAxial"):
        CausalAxial(D, H, COLUMNS)(x, full)
