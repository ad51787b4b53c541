"""Neural processes: densities and divergences against PyTorch's and integrals, attention against nn.MultiheadAttention, sets of points."""

from functools import partial

import pytest
import torch
from torch import Tensor, distributions, nn

from regard import capture
from regard.errors import BadConfig, ShapeError
from regard.models import Gaussian, ProcessModel, build

B, C, T, X, Y, D, H, Z = 3, 5, 4, 2, 3, 12, 3, 7
SIZES = torch.tensor([C, 1, 3])
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
KINDS = [
    ("neural_process", {}),
    ("neural_process", {"deterministic": False}),
    ("attentive_neural_process", {"heads": H}),
    ("attentive_neural_process", {"heads": H, "latent": 0}),
    ("attentive_neural_process", {"heads": H, "self_depth": 1}),
]
each_kind = pytest.mark.parametrize(("name", "settings"), KINDS, ids=lambda x: x if isinstance(x, str) else "-".join(x))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def made(name: str, **settings) -> ProcessModel:
    torch.manual_seed(0)
    model = build(name, {"inputs": X, "outputs": Y, "width": D, "latent": Z, **settings})
    for p in model.parameters():
        nn.init.normal_(p, std=0.4)
    return model.double().eval()


def seeded(call):
    torch.manual_seed(5)
    return call()


# -- the distribution ----------------------------------------------------------------------------------------------------


def test_density_and_divergence_are_those_of_torch():
    q, p = (Gaussian(randn(B, Z, seed=n), 0.1 + randn(B, Z, seed=n + 1).abs()) for n in (1, 3))
    ours, theirs = (q, p), [distributions.Independent(distributions.Normal(*one), 1) for one in (q, p)]
    y = randn(B, Z, seed=7)
    close(ours[0].log_prob(y), theirs[0].log_prob(y))
    close(q.kl(p), distributions.kl_divergence(*theirs))
    close(q.kl(q), torch.zeros(B, dtype=torch.float64))


def test_density_and_divergence_are_integrals():
    q, p = (
        Gaussian(torch.tensor([0.3]).double(), torch.tensor([0.5]).double()),
        Gaussian(torch.tensor([-0.4]).double(), torch.tensor([0.8]).double()),
    )
    at = torch.linspace(-8, 8, 20_001, dtype=torch.float64)[:, None]
    density = q.log_prob(at).exp()
    close(torch.trapezoid(density, at[:, 0]), torch.tensor(1.0, dtype=torch.float64))
    close(torch.trapezoid(density * (q.log_prob(at) - p.log_prob(at)), at[:, 0]), q.kl(p))


@each_kind
def test_deviations_are_bounded(name, settings):
    """σ = 0.1 + 0.9 softplus of values, 0.1 + 0.9 sigmoid of z: at least 0.1, and that of z at most 1."""
    model = made(name, **settings)
    found = model(1e3 * randn(B, C, X), 1e3 * randn(B, C, Y), randn(B, T, X))
    assert found.std.min() >= 0.1 and found.mean.shape == (B, 1, T, Y)
    if model.config.latent:
        z = model.posterior(1e3 * randn(B, C, X), randn(B, C, Y), SIZES)
        assert z.std.min() >= 0.1 and z.std.max() <= 1
    zero = made(name, **settings)
    for p in zero.decoder[-1].parameters():
        nn.init.zeros_(p)
    found = zero(randn(B, C, X), randn(B, C, Y), randn(B, T, X))
    close(found.std, torch.full_like(found.std, 0.1 + 0.9 * float(torch.tensor(2.0).double().log())))


# -- the model -----------------------------------------------------------------------------------------------------------


def test_attention_to_known_points_is_pytorchs():
    model = made("attentive_neural_process", heads=H)
    part, theirs = model.across, nn.MultiheadAttention(D, H, batch_first=True).double()
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([part.q.weight, part.k.weight, part.v.weight]),
            "in_proj_bias": torch.cat([part.q.bias, part.k.bias, part.v.bias]),
            "out_proj.weight": part.out.weight,
            "out_proj.bias": part.out.bias,
        }
    )
    at, where, what = randn(B, T, D), randn(B, C, D, seed=1), randn(B, C, D, seed=2)
    expected, weights = theirs(at, where, what, key_padding_mask=torch.arange(C) >= SIZES[:, None], average_attn_weights=False)
    with capture(model, dtype=torch.float64) as maps:
        close(part(at, where, what, SIZES), expected)
    close(maps["across.attention"][0].weights_BHLM, weights)


def test_the_plain_process_takes_the_mean():
    """The whole forward pass again, without padding, by hand."""
    model = made("neural_process")
    x, y, at = randn(1, C, X), randn(1, C, Y, seed=1), randn(1, T, X, seed=2)
    both = torch.cat([x, y], -1)
    r, s = model.points(both).mean(1), model.latent_points(both).mean(1)
    mean, raw = model.latent(s).chunk(2, -1)
    z = seeded(lambda: mean + (0.1 + 0.9 * raw.sigmoid()) * torch.randn(1, 1, Z, dtype=torch.float64)[0])
    out = model.decoder(torch.cat([at, r.expand(1, T, D), z.expand(1, T, Z)], -1))
    close(seeded(lambda: model(x, y, at)).mean[:, 0], out[..., :Y])


@each_kind
def test_points_have_no_order_and_padding_no_influence(name, settings):
    model = made(name, **settings)
    x, y, at = randn(B, C, X), randn(B, C, Y, seed=1), randn(B, T, X, seed=2)
    order = torch.randperm(C, generator=torch.Generator().manual_seed(1))
    one, other = (seeded(partial(model, x[:, o], y[:, o], at)) for o in (torch.arange(C), order))
    close(one.mean, other.mean)
    for row, n in enumerate(SIZES.tolist()):
        x[row, n:], y[row, n:] = 1e3, -1e3
    padded = seeded(lambda: model(x[1:2], y[1:2], at[1:2], SIZES[1:2]))
    close(padded.mean, seeded(lambda: model(x[1:2, :1], y[1:2, :1], at[1:2])).mean)


@each_kind
def test_without_any_point_the_prediction_is_defined(name, settings):
    model, none = made(name, **settings), torch.tensor([0, 0, 2])
    x, y, at = randn(B, C, X), randn(B, C, Y), randn(B, T, X)
    found = seeded(lambda: model(x, y, at, none))
    found.mean.sum().backward()
    assert found.mean.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@each_kind
def test_the_bound_has_one_encoder_and_counts_points_once(name, settings):
    """KL of z from all points to z from the context, by torch.distributions; padding has no likelihood; targets contain the context."""
    model = made(name, **settings)
    x, y, n = randn(B, C, X), randn(B, C, Y, seed=1), torch.tensor([C, 2, 4])
    context = torch.tensor([2, 1, 4])
    log_prob_BL, kl_B = seeded(lambda: model.bound(x, y, context, n))
    assert log_prob_BL.shape == (B, C) and not log_prob_BL[1, 2:].any() and log_prob_BL[0].all()
    if not model.config.latent:
        assert not kl_B.any()
        return
    every, known = (distributions.Normal(*model.posterior(x, y, k)) for k in (n, context))
    close(kl_B, distributions.kl_divergence(every, known).sum(-1))
    assert float(kl_B[2].detach()) == pytest.approx(0, abs=1e-12)  # the context is everything
    z = seeded(lambda: model.posterior(x, y, n).sample())
    expected = model.decode(x, x, y, context, z[:, None]).log_prob(y[:, None])[:, 0]
    close(log_prob_BL[0], expected[0])


def test_samples_of_z_differ_and_share_the_context():
    model = made("attentive_neural_process", heads=H)
    x, y, at = randn(B, C, X), randn(B, C, Y), randn(B, T, X)
    found = model(x, y, at, samples=5)
    assert found.mean.shape == (B, 5, T, Y) and not torch.allclose(found.mean[:, 0], found.mean[:, 1])


def test_what_does_not_fit_is_refused():
    with pytest.raises(BadConfig, match="use one of the two"):
        made("neural_process", deterministic=False, latent=0)
    with pytest.raises(BadConfig, match="multiple of heads=5"):
        made("attentive_neural_process", heads=5)
    with pytest.raises(ShapeError, match=r"points \(batch, points, 2\)"):
        made("neural_process")(randn(B, C, 1), randn(B, C, Y), randn(B, T, 1))
