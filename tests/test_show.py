"""Pictures of mechanisms: an example for each, and a reason where there is none."""

import pytest
import torch

from regard import Attention, SoftmaxAttention, causal
from regard.errors import NotSupported, PatternNotSupported, ShapeError
from regard.look.examples import example


def test_the_example_repeats_and_is_always_the_same():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    drawn = example(SoftmaxAttention, 8).view()
    weights_LM = drawn.weights_BHLM[0, 0]
    assert drawn.pattern == "causal" and weights_LM.shape == (8, 8) and drawn.labels()[1] == list("12341234")
    assert torch.get_rng_state().equal(before), "an example must not disturb the caller's random numbers"
    assert weights_LM.equal(example(SoftmaxAttention, 8).view().weights_BHLM[0, 0])
    torch.testing.assert_close(weights_LM[7, 3], weights_LM[7, 7])  # the token four back is the same token


def test_without_a_causal_form_the_example_is_full():
    class Blind(SoftmaxAttention):
        def forward(self, q_BLHK, k_BMHK, v_BMHV, pattern=causal, bias=None, state=None):
            if pattern is causal:
                raise PatternNotSupported("not causal")
            return super().forward(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)

    assert example(Blind).view().pattern == "full"


def test_without_weights_there_is_a_reason():
    class Nothing(Attention):
        facts = SoftmaxAttention.facts

    with pytest.raises(NotSupported, match="Nothing has no example"):
        example(Nothing)


@pytest.mark.parametrize("length", [0, 1, 201])
def test_sizes_are_bounded(length):
    with pytest.raises(ShapeError, match="expected 2 to 200"):
        example(SoftmaxAttention, length)
