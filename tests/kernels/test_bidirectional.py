"""Recurrent layers in both directions against PyTorch's, over packed sequences."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.layers import Bidirectional

B, L, D, W = 5, 7, 3, 4


def pair(cell: str) -> tuple[nn.Module, nn.RNNBase]:
    """Ours, and PyTorch's with the same parameters."""
    torch.manual_seed(0)
    ours = Bidirectional(cell, D, W).double()
    theirs = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](D, W, batch_first=True, bidirectional=True).double()
    order = {"lstm": (0, 1, 3, 2), "gru": (0, 1, 2)}[cell]
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn_like(parameter))
        for direction, suffix in enumerate(("", "_reverse")):
            for name, ours_own in (("weight_ih", ours.weight_2DG), ("weight_hh", ours.recurrent_2WG)):
                gates = ours_own[direction].T.chunk(len(order))
                getattr(theirs, f"{name}_l0{suffix}").copy_(torch.cat([gates[n] for n in order]))
            own_bias, theirs_bias = ours.bias_2G[direction].chunk(len(order)), getattr(theirs, f"bias_ih_l0{suffix}")
            theirs_bias.copy_(torch.cat([own_bias[n] for n in order]))
            second = ours.recurrent_bias_2G[direction] if cell == "gru" else torch.zeros(len(order) * W)
            getattr(theirs, f"bias_hh_l0{suffix}").copy_(second)
    return ours, theirs


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_states_and_gradients_are_pytorchs(cell):
    ours, theirs = pair(cell)
    x_BLD, n_B = torch.randn(B, L, D, dtype=torch.float64, requires_grad=True), torch.tensor([3, 7, 1, 7, 5])
    cotangent = torch.randn(B, L, 2 * W, dtype=torch.float64)
    packed = pack_padded_sequence(x_BLD, n_B, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(theirs(packed)[0], batch_first=True)[0]
    found = ours(x_BLD, n_B)
    torch.testing.assert_close(found, expected)
    (d_expected, *d_theirs), (d_found, *d_ours) = (
        torch.autograd.grad(out, [x_BLD, *layer.parameters()], cotangent) for out, layer in ((expected, theirs), (found, ours))
    )
    torch.testing.assert_close(d_found, d_expected)
    assert sum(d.square().sum() for d in d_ours[:1]) > 0
    in_theirs = dict(zip((name for name, _ in theirs.named_parameters()), d_theirs, strict=True))
    in_ours = dict(zip((name for name, _ in ours.named_parameters()), d_ours, strict=True))
    order = {"lstm": (0, 1, 3, 2), "gru": (0, 1, 2)}[cell]
    names = {"weight_2DG": "weight_ih", "recurrent_2WG": "weight_hh", "bias_2G": "bias_ih", "recurrent_bias_2G": "bias_hh"}
    for name, gradient in in_ours.items():
        for direction, suffix in enumerate(("", "_reverse")):
            gates = gradient[direction].mT.chunk(len(order)) if gradient.dim() == 3 else gradient[direction].chunk(len(order))
            torch.testing.assert_close(torch.cat([gates[n] for n in order]), in_theirs[f"{names[name]}_l0{suffix}"])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gradcheck_with_an_empty_row(cell):
    ours, _ = pair(cell)
    x_BLD, n_B = torch.randn(3, 4, D, dtype=torch.float64, requires_grad=True), torch.tensor([2, 0, 4])
    assert torch.autograd.gradcheck(lambda x: ours(x, n_B), [x_BLD])
    assert not ours(x_BLD, n_B)[1].any()
    assert not ours(x_BLD, n_B)[0, 2:].any()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_batch_of_empty_rows(cell):
    ours, _ = pair(cell)
    x_BLD = torch.randn(2, 3, D, dtype=torch.float64, requires_grad=True)
    out = ours(x_BLD, torch.tensor([0, 0]))
    out.sum().backward()
    assert not out.any()
    assert not x_BLD.grad.any()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_packed_rows_are_padded_rows(cell):
    ours, _ = pair(cell)
    x_BLD, n_B = torch.randn(4, L, D, dtype=torch.float64, requires_grad=True), torch.tensor([2, 0, 7, 5])
    real_BL = torch.arange(L) < n_B[:, None]
    padded, packed = ours(x_BLD, n_B)[real_BL], ours(x_BLD[real_BL], n_B)
    assert torch.equal(padded, packed)
    cotangent = torch.randn_like(packed)
    assert all(
        torch.equal(a, b)
        for a, b in zip(*(torch.autograd.grad(out, [x_BLD, *ours.parameters()], cotangent) for out in (padded, packed)), strict=True)
    )
