"""Recipes on images and clips: metrics and pictures of models that are hardly trained, and costs against closed forms."""

from dataclasses import replace

import pytest

from regard.recipes import Results, image_transformer2018, run, vivit2021
from regard.recipes._engine.variants import short_training
from regard.recipes.image_transformer2018 import WIDE, Histogram, Pixels, fewer
from regard.recipes.vivit2021 import Cost

TINY = {"width": 16, "heads": 2, "depth": 1, "hidden": 16}


def test_bits_of_the_histogram(tmp_path):
    assert 2.2 < Histogram()(0, tmp_path)["bits"] < 2.6  # the card of this recipe measured 2.43


def test_fewer_bits_by_a_share():
    results = Results({"a": [{"bits": 0.84}, {"bits": 1.6}], "b": [{"bits": 1.0}, {"bits": 2.0}]}, (0, 1))
    margins = {share: fewer("", "a", "b", share).comparisons[0].margin(results).values for share in (0.15, 0.17)}
    assert margins[0.15] == pytest.approx((0.01, 0.1)) and margins[0.17] == pytest.approx((-0.01, 0.06))


def test_a_model_of_pixels(tmp_path, monkeypatch):
    short = short_training(2, 3e-2, evaluations=1)
    monkeypatch.setattr(image_transformer2018, "SETTINGS", TINY)
    small = {
        "histogram": Histogram(),
        WIDE: Pixels(train=short, complete=True),
        "super-resolution": Pixels(train=short, super_resolution=4, settings={"encoder_depth": 1}),
    }
    recipe = replace(image_transformer2018.recipe, variants=small, claims=image_transformer2018.recipe.claims[:1], rates=())
    outcome = run(recipe, tmp_path, (0,), log=lambda line: None)
    found = outcome.results.metrics[WIDE][0]
    assert {"bits", "error, mean of samples", "error, one sample", "error, mean image"} <= found.keys() and not outcome.held
    assert 0.1 < found["error, mean image"] < 0.4
    assert (tmp_path / "completions.png").exists() and "completions" in (tmp_path / "report.html").read_text()


def test_a_model_of_clips(tmp_path):
    chosen = {name: vivit2021.VARIANTS[name] for name in ("self_attention", "frames apart, mean")}
    small = {
        name: replace(one, train=short_training(2, 3e-3, evaluations=2), settings={**one.settings, **TINY, "patch_size": (8, 8)})
        for name, one in chosen.items()
    }
    outcome = run(replace(vivit2021.recipe, variants=small, claims=(), rates=()), tmp_path, (0,), log=lambda line: None)
    assert set(outcome.results.metrics) == set(small) and (tmp_path / "attention.png").exists()


@pytest.mark.parametrize(
    ("factorisation", "pairs"),
    [("joint", 512**2), ("encoder", 8 * 64**2), ("self_attention", 512 * (64 + 8)), ("dot_product", 512 * (64 + 8) / 2)],
)
def test_operations_of_attention(factorisation, pairs, tmp_path):
    """What is counted besides the linear layers: 4 · pairs · width per layer; a temporal encoder of 8 steps adds a little."""
    found, linear = Cost(factorisation)(0, tmp_path), {"joint": 60.8, "encoder": 61.7, "self_attention": 94.4, "dot_product": 60.8}
    assert found["megaflops"] == pytest.approx(linear[factorisation] + 2 * 4 * pairs * 64 / 1e6, abs=0.2) and found["milliseconds"] > 0
