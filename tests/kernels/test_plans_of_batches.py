"""Plans of patterns made from tensors: exact for every padding, made once per batch, and never taken for those of other tensors."""

import pytest
import torch
from tests.kernels.test_exact import reference, same

import regard.patterns as P
from regard.kernels import attend, force
from regard.kernels.exact import plan, tiled_softmax
from regard.kernels.exact.contents import Kept, contents

B, L, H, G, K = 4, 333, 4, 2, 8
RULES = [
    P.causal & P.window(20),
    P.full,
    P.causal,
    P.window(9) | P.tokens(0, -1, 100),
    P.per_head(P.causal, P.window(5), P.full, P.stride(7)),
]
PADDINGS = [
    P.lengths([333, 320, 301, 310]),
    P.lengths([333, 0, 64, 1]),  # so different that each row has tiles of its own
    P.lengths([300]),
    P.since([0, 5, 32, 200]),
    P.since([4]) & P.lengths([300, 310, 290, 333]),
    P.lengths([0, 0, 0, 0]),
    P.since([100, 0, 0, 300]) & P.lengths([100, 50, 333, 301]),  # one row with no key
]


def inputs(length=L):
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((B, length, H, K), (B, L, G, K), (B, L, G, K))]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("number", range(len(PADDINGS)))
@pytest.mark.parametrize("path", ["plain", "tiles"])
def test_padding_is_exact(rule, number, path):
    q, k, v = inputs(L if number % 2 else 150)
    pattern = PADDINGS[number] & rule if number % 3 else rule & PADDINGS[number]
    with force(path):
        same(attend(q, k, v, pattern), reference(q, k, v, pattern), (q, k, v))
        same(attend(q, k, v, pattern), reference(q, k, v, pattern), (q, k, v))  # from the plan that was kept


def test_one_plan_per_batch(monkeypatch):
    made = []
    build = plan._batch_plan
    monkeypatch.setattr(plan, "_batch_plan", lambda *args: made.append(args) or build(*args))
    monkeypatch.setattr(plan, "_OF_BATCHES", Kept(8))
    q, k, v = inputs()
    for padding in (P.lengths([333, 320, 301, 310]), P.segments(torch.arange(L) // 40)):
        made.clear()
        for _ in range(3):  # layers, each with a pattern of its own
            with force("tiles"):
                attend(q, k, v, P.window(20) & type(padding)(next(iter(vars(padding).values())).clone())).sum().backward()
        assert len(made) == 1


def test_small_masks_are_made_once_per_batch(monkeypatch):
    monkeypatch.setattr(tiled_softmax, "_MASKS", Kept(8))
    made = []
    monkeypatch.setattr(tiled_softmax, "additive", lambda mask, dtype: made.append(mask) or plan.additive(mask, dtype))
    q, k, v = (x[:, :60] for x in inputs())
    for _ in range(3):
        attend(q, k, v, P.lengths([60, 50, 40, 1]))
    assert len(made) == 1


def test_other_tensors_are_other_patterns():
    n = torch.tensor([333, 300, 20, 5])
    mask = torch.rand(1, 1, 1200, 1200) < 0.5  # larger than what is compared
    for pattern, tensor in ((P.lengths(n), n), (P.keep(mask), mask)):
        before = contents(pattern)
        assert contents(type(pattern)(tensor)) == before
        tensor[..., 0] = tensor[..., 0] ^ True if tensor.dtype == torch.bool else 7
        assert contents(pattern) != before
    assert contents(P.lengths([3, 4])) != contents(P.since([3, 4]))
    assert contents(P.lengths([3, 4]) & P.causal) != contents(P.lengths([3, 4]) | P.causal)
    assert contents(P.keep(mask[:, :, :1])) != contents(P.keep(mask[:, :, :, :1]))


def test_a_changed_mask_is_seen():
    q, k, v = inputs()
    mask = torch.rand(L, L) < 0.5
    for _ in range(2):
        with force("tiles"):
            same(attend(q, k, v, P.keep(mask)), reference(q, k, v, P.keep(mask)), (q, k, v))
        mask.logical_not_()


def test_identities_are_not_used_twice():
    kept, found = Kept[int](2), []
    for n in range(50):
        mask = torch.zeros(1, 1, 1200, 1200, dtype=torch.bool)
        found.append(kept.get(P.keep(mask), (), lambda n=n: n))
        del mask
    assert found == list(range(50))
