"""What every mechanism must hold: the checks of `regard.testing` over all of them. A new one is tested by being imported."""

import pytest
import torch

from regard.attention import MECHANISMS, Cache, SoftmaxAttention
from regard.errors import StateNotSupported
from regard.kernels.exact import tiled_softmax
from regard.kernels.exact.contents import Kept
from regard.patterns import causal, from_row_start
from regard.testing import CHECKS, NotApplicable

H, G, K = 4, 2, 7


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.facts.name)
@pytest.mark.parametrize("check", CHECKS)
def test_contract(check, mechanism):
    try:
        CHECKS[check](mechanism)
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.facts.name)
def test_shapes_are_known_without_memory(mechanism):
    """On the meta device, where the size of a model is compared with its file before it is built."""
    with torch.device("meta"):
        empty = mechanism.sized(heads=4, head_dim=8, length=64).state_dict()
    real = mechanism.sized(heads=4, head_dim=8, length=64).state_dict()
    assert {name: x.shape for name, x in empty.items()} == {name: x.shape for name, x in real.items()}


class TestJoined:
    """What joining costs, and what it refuses."""

    def joined(self, *lengths: int, reach=None) -> Cache:
        states = []
        for n in lengths:
            states.append(Cache(1, reach))
            for t in range(n):
                states[-1].append(*(torch.full((1, 1, H, K), float(t)) for _ in "kv"), causal)
        for other in states[1:]:
            states[0].join(other)
        return states[0]

    def test_rows_of_one_length_need_no_mask(self):
        assert self.joined(5, 5).over(causal, 1) is causal
        state = self.joined(9, 4, 4)
        assert state.over(causal, 1) == from_row_start(causal, (0, 5, 5))
        assert state.reorder(torch.tensor([1, 2])).over(causal, 1) is causal
        assert state.keys_and_values()[0].shape == (2, 4, H, K) and state.length == 4

    def test_one_mask_serves_all_layers_of_a_step(self, monkeypatch):
        monkeypatch.setattr(tiled_softmax, "_MASKS", kept := Kept(8))
        attention, states = SoftmaxAttention(), [self.joined(9, 4) for _ in range(5)]
        for _ in range(2):
            for state in states:
                attention(*(torch.randn(2, 1, H, K) for _ in "qkv"), causal, state=state)
        assert len(kept._found) == 2  # of 10 and of 11 keys

    def test_grouped_heads_under_a_mask(self):
        """A step of rows that began at different places, with fewer key heads: the cache is not copied a head."""
        states = [SoftmaxAttention().start(1) for _ in range(2)]
        q, k, v = torch.randn(2, 12, H, K), torch.randn(2, 12, G, K), torch.randn(2, 12, G, K)
        for b, (state, n) in enumerate(zip(states, (9, 4), strict=True)):
            SoftmaxAttention()(*(x[b : b + 1, :n] for x in (q, k, v)), causal, state=state)
        now = [torch.stack([x[0, 9:10], x[1, 4:5]]) for x in (q, k, v)]
        out = SoftmaxAttention()(*now, causal, state=states[0].join(states[1]))
        for b, n in enumerate((9, 4)):
            alone = SoftmaxAttention()(*(x[b : b + 1, : n + 1] for x in (q, k, v)), causal)[0, n:]
            torch.testing.assert_close(out[b], alone)

    def test_rolling_caches_with_sinks(self):
        same = self.joined(30, 30, reach=(3, 2))
        assert same.keys_and_values()[0].shape[0] == 2 and same.position() == 30
        with pytest.raises(StateNotSupported, match="first 2 keys"):
            self.joined(30, 7, reach=(3, 2))
        with pytest.raises(StateNotSupported, match="different patterns"):
            Cache(1, (3, 0)).join(Cache(1))

    def test_nothing_left_and_then_another(self):
        state = self.joined(9, 4).reorder(torch.tensor([], dtype=torch.long))
        assert state.batch == 0
        state.join(self.joined(3))
        assert state.position() == 3 == state.length and state.keys_and_values()[0].shape == (1, 3, H, K)


def test_names_are_unique_and_oldest_first():
    names = [m.facts.name for m in MECHANISMS]
    assert len(set(names)) == len(names)
    assert [m.facts.paper.year for m in MECHANISMS] == sorted(m.facts.paper.year for m in MECHANISMS)
