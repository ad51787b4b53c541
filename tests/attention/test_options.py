"""Options of mechanisms: bad values are refused by name when one is constructed, and good ones run."""

import copy
import inspect
import math

import numpy as np
import pytest
import torch

from regard import BigBirdAttention, HardAttention, LocalAttention, Retention, SoftmaxAttention, causal, full
from regard.attention import MECHANISMS, Attention, Facts, Paper
from regard.bounds import Count, Fraction, Positive, Size, convert
from regard.errors import BadConfig, RegardError
from regard.layers.spec import Spec, _known_settings

H, K, L = 4, 7, 17
VALUES = [
    *(-3, -1, 0, 1, 2, 3, 5, 64, 10**20, -(10**20)),
    *(-1.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.5, 1e-300, 1e300, math.inf, -math.inf, math.nan),
    *("x", "", "none", "headwise", "matrix", b"x", None, True, False),
    *((), (0,), (2,), (1, 2), (2, 2), (-1, 2), (0.5,) * H, (1.5,), ("x",), [2, 2], [], {}, {"x": 1}, {1}, object(), 1j),
]


def options(mechanism: type[Attention]) -> list[str]:
    """All but `parts`, which are mechanisms themselves."""
    return [name for name in _known_settings(mechanism) or [] if name != "parts"]


def run(attention: Attention) -> None:
    q, k, v = torch.randn(3, 1, L, H, K, requires_grad=True).unbind()
    gates = {name: torch.zeros(shape) for name, shape in attention.gate_shapes(q, k).items()}
    for pattern in (full, causal):
        if attention.supports(pattern):
            out = attention(q, k, v, pattern, **gates)
            if out.requires_grad:
                out.sum().backward()


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.facts.name)
def test_every_value_of_every_option_runs_or_is_refused_by_a_typed_error(mechanism):
    torch.manual_seed(0)
    given = mechanism.sized(heads=H, head_dim=K, length=L).settings
    for name in options(mechanism):
        for value in VALUES:
            try:
                attention = mechanism(**{**given, name: value})
                run(attention)
            except RegardError as error:
                assert str(error)
            except Exception as error:
                pytest.fail(f"{mechanism.__name__}({name}={value!r}): {type(error).__name__}: {error}")


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.facts.name)
def test_every_option_is_bounded(mechanism):
    """A real number declares a range: infinity and not-a-number never get in."""
    given = mechanism.sized(heads=H, head_dim=K, length=L).settings
    for name in options(mechanism):
        for value in (math.inf, math.nan, 1e31, object()):
            with pytest.raises(BadConfig, match=f"{mechanism.__name__}: {name}="):
                mechanism(**{**given, name: value})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("softmax(scale='x')", r"SoftmaxAttention: scale='x'; expected `float \| null`, got `str`"),
        ("softmax(dropout=5)", r"dropout=5; expected `float` < 1"),
        ("softmax(sinks=-3)", r"sinks=-3; expected `int` >= 0"),
        ("softmax(softcap=0)", r"softcap=0; expected `float` > 0"),
        ("softmax(scale=1e400)", r"scale=inf; expected `float` <= 1e\+30"),
        ("local(radius=2, dropout=-1)", r"LocalAttention: dropout=-1; expected `float` >= 0"),
        ("retention(decay=(0.5, 2))", r"decay=\(0.5, 2\); expected `float` <= 1.0 - at `decay\[1\]`"),
        ("linformer(max_length=8, sharing='all')", r"sharing='all'; expected 'none' or 'headwise' or 'key-value'"),
        ("lsh(buckets=3)", r"buckets=3; expected `int` that's a multiple of 2"),
    ],
)
def test_a_line_of_a_config_is_refused_by_name(text, words):
    with pytest.raises(BadConfig, match=words):
        Spec.read(text).build(heads=H, head_dim=K, length=L)


def test_an_argument_that_does_not_exist_is_pythons_own_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'scal'"):
        SoftmaxAttention(scal=1.0)


def test_numbers_of_numpy_are_numbers():
    assert SoftmaxAttention(scale=1 / np.sqrt(64)).scale == 0.125 and LocalAttention(np.int64(3)).radius == 3
    with pytest.raises(BadConfig, match="radius"):
        LocalAttention(np.int64(-3))


def test_signatures_copies_and_documentation_stay():
    assert list(inspect.signature(LocalAttention).parameters) == ["radius", "options"]
    assert "dense" in inspect.signature(BigBirdAttention).parameters
    attention = LocalAttention(5, dropout=0.25)
    for again in (copy.deepcopy(attention), copy.copy(attention)):
        assert again.settings == {"radius": 5, "dropout": 0.25}


class Outside(Attention):
    """Of a user, with bounds of their own, and a type that only they know."""

    facts = Facts(name="outside", paper=Paper("none", 2024, "none"), formula="", time="L", memory="L")

    def __init__(self, *, block: Size = 4, helper: "Attention | None" = None, hook=None):
        super().__init__()
        self.block, self.helper, self.hook = block, helper, hook


def test_classes_outside_the_package_are_checked_too():
    assert Outside(block=2, helper=SoftmaxAttention(), hook=print).block == 2
    with pytest.raises(BadConfig, match="Outside: block=0; expected `int` >= 1"):
        Outside(block=0)


def test_a_type_that_cannot_be_found_is_not_checked():
    class Local:
        pass

    class Inside(Attention):
        facts = Outside.facts

        def __init__(self, *, helper: "Local" = None, count: "Local" = 3):
            super().__init__()

    Inside(helper=Local(), count=-1)


def test_what_is_not_a_number():
    with pytest.raises(BadConfig, match="generator=3; expected"):
        HardAttention(generator=3)
    with pytest.raises(BadConfig, match="decay"):
        Retention(decay=[])


@pytest.mark.parametrize(
    ("kind", "good", "bad"), [(Size, 1, 0), (Count, 0, -1), (Positive, 1e-9, 0), (Fraction, 1, 1.01), (int, 3, 3.0), (int, 3, True)]
)
def test_bounds(kind, good, bad):
    assert convert("X", "x", good, kind) == good
    with pytest.raises(BadConfig, match="X: x="):
        convert("X", "x", bad, kind)
