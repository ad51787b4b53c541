"""Writing: it ends when the window passes the text, a prime is followed but not repeated, and the bias makes it careful."""

import math

import pytest
import torch

from regard.decode import write
from regard.errors import NotSupported
from regard.models import Handwriting, HandwritingConfig

TEXT = [1, 2, 3, 4]


def steady(pace, **settings):
    """A network whose window moves by `pace` characters per point, whatever it writes."""
    torch.manual_seed(0)
    model = Handwriting(
        HandwritingConfig(**{"vocab_size": 5, "width": 6, "window_components": 1, "components": 2, "max_length": 60, **settings})
    )
    with torch.no_grad():
        model.window.w_HKP.zero_()
        model.window.c_HP.copy_(torch.tensor([[0.0, 1.0, math.log(pace)]]))
    return model


def test_it_ends_when_the_window_is_past_the_last_character():
    """κ of the n-th point is 0.48 n: past 4.5, half way to the end of the text, with the tenth, which is not written."""
    (found,) = write(steady(0.48), [TEXT])
    assert found.complete and len(found.points_L3) == 10 and found.weights_LM.shape == (10, 5)
    assert found.points_L3[0].tolist()[:2] == [0, 0] and found.points_L3[-1, 2] == 1
    assert found.weights_LM[1:].argmax(1).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]


def test_each_text_ends_by_itself():
    short, long = write(steady(0.48), [TEXT[:2], TEXT])
    assert len(short.points_L3) == 6 and len(long.points_L3) == 10 and short.weights_LM.shape[1] == 3


def test_a_limit():
    (found,) = write(steady(0.01), [TEXT], max_points=7)
    assert not found.complete and len(found.points_L3) == 8  # and the origin


def test_priming_goes_on_where_the_strokes_end():
    model, prime = steady(0.48), (TEXT, torch.randn(8, 3))
    (found,) = write(model, [TEXT], prime=prime)
    assert found.complete and found.weights_LM.shape[1] == 5 and not found.points_L3[0, :2].any()
    assert len(found.points_L3) == 10  # the window has 8 characters to pass, and has come to the fourth
    (other,) = write(model, [TEXT], prime=(TEXT, 3 * prime[1]))
    assert not torch.equal(found.points_L3, other.points_L3)


def test_seeds_and_bias():
    model = steady(0.1)
    one, two, other = (write(model, [TEXT], seed=seed)[0].points_L3 for seed in (1, 1, 2))
    assert torch.equal(one, two) and not torch.equal(one, other)
    careful = [write(model, [TEXT], seed=seed, bias=60.0)[0].points_L3[:, :2] for seed in (1, 2)]
    torch.testing.assert_close(careful[0][:2], careful[1][:2], atol=1e-4, rtol=0)  # later ones differ by whether the pen was lifted
    with pytest.raises(NotSupported, match="a bias of -1"):
        write(model, [TEXT], bias=-1.0)


def test_without_a_text_it_writes_to_the_limit():
    torch.manual_seed(0)
    model = Handwriting(HandwritingConfig(width=6, components=2, max_length=12))
    one, two = write(model, [[], []])
    assert len(one.points_L3) == 13 and one.weights_LM.shape == (13, 0) and not torch.equal(one.points_L3, two.points_L3)
    assert write(model, []) == []
