"""DALL·E and its discrete VAE: no layer sees a later token, and every term of the loss has its closed form."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.data.scenes import scenes
from regard.errors import BadConfig, ShapeError
from regard.models import DALLE, DALLEConfig
from regard.models.discrete_vae import MIN_LOG_STD, DiscreteVAE, kl_to_uniform, log_normal
from regard.patterns import causal

T, GRID, CODES = 5, 4, 7


def made(**more):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 13,
        "max_length": T,
        "image_size": 16,
        "stride": 4,
        "codes": CODES,
        "features": 8,
        "width": 12,
        "heads": 2,
        "depth": 4,
    }
    model = DALLE(DALLEConfig(**sizes | more)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def inputs():
    torch.manual_seed(1)
    text_BT = torch.tensor([[1, 5, 6, 2, -1], [1, 7, 2, -1, -1]])
    return text_BT, torch.randint(CODES, (2, GRID**2))


@torch.no_grad()
@pytest.mark.parametrize("more", [{}, {"sparse": False}, {"depth": 7, "radius": 1}, {"attention": ("softmax", "linear"), "sparse": False}])
def test_no_token_sees_a_later_one(more):
    model = made(**more)
    ids_BL = model.sequence(*inputs())
    x_BLD = model.features(ids_BL)
    for at in range(ids_BL.shape[1]):
        other = ids_BL.clone()
        other[:, at] = (other[:, at] + 1) % (13 + T + CODES)
        changed_BLD = model.features(other)
        assert changed_BLD[:, :at].equal(x_BLD[:, :at])
        assert not changed_BLD[:, at].equal(x_BLD[:, at])


@torch.no_grad()
def test_sampling_reads_as_training_does():
    model = made()
    text_BT, codes_BM = inputs()
    ids_BL, state = model.sequence(text_BT, codes_BM), model.start(2)
    x_BLD = torch.cat([model.features(ids_BL[:, :T], state), *(model.features(one, state) for one in ids_BL[:, T:].split(1, 1))], 1)
    torch.testing.assert_close(x_BLD, model.features(ids_BL))
    greedy_BM = model.sample(text_BT, temperature=0)
    logits = model.code_logits(model.features(model.sequence(text_BT, greedy_BM))[:, T - 1 : -1])
    assert logits.argmax(-1).equal(greedy_BM)
    draw = [model.sample(text_BT, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)]
    assert draw[0].equal(draw[1]) and not draw[0].equal(draw[2])


def test_patterns_are_those_of_the_paper():
    """Against the rules written out: text is visible to all; of the image a row back, the column above, or a neighbourhood."""
    model = made(depth=7, radius=1)
    assert [model.layer_kind(n) for n in range(7)] == ["row", "row", "column", "row", "row", "row", "conv"]

    def rule(kind, i, j):
        if j > i or j < T:
            return j <= i
        (r, c), (s, d) = divmod(i - T, GRID), divmod(j - T, GRID)
        return {"row": i - j <= GRID, "column": c == d, "conv": r - s <= 1 and abs(c - d) <= 1}[kind]

    for layer in (0, 2, 6):
        heads = model.attentions()[f"blocks.{layer}.mixer"]
        mask_LM = (causal & heads.within).mask(model.length, model.length)[0, 0]
        expected = [[rule(model.layer_kind(layer), i, j) for j in range(model.length)] for i in range(model.length)]
        assert mask_LM.tolist() == expected


@torch.no_grad()
def test_the_loss_is_that_of_the_next_token():
    model, (text_BT, codes_BM) = made(), inputs()
    ids_BL, found = model.sequence(text_BT, codes_BM), model(text_BT, codes_BM)
    assert ids_BL[0, :T].tolist() == [1, 5, 6, 2, 13 + 4] and ids_BL[1, 3:T].tolist() == [13 + 3, 13 + 4]  # each padding its own id
    logits_BLN = F.linear(model.features(ids_BL), model.output.weight, model.output.bias)
    split = 13 + T
    for row in range(2):
        text = sum(float(F.cross_entropy(logits_BLN[row, t, :split], ids_BL[row, t + 1])) for t in range(T - 1))
        image = sum(float(F.cross_entropy(logits_BLN[row, t, split:], ids_BL[row, t + 1] - split)) for t in range(T - 1, model.length - 1))
        assert float(found.text_B[row]) == pytest.approx(text) and float(found.image_B[row]) == pytest.approx(image)


def test_errors():
    with pytest.raises(BadConfig, match="power of two"):
        made(stride=3)
    with pytest.raises(ShapeError, match="reads 5"):
        made().text_ids(torch.zeros(1, 6, dtype=torch.long))


# -- the VAE -------------------------------------------------------------------------------------------------------------


def test_kl_has_its_closed_form():
    q_BMN = torch.tensor([[[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]], [[0.98, 0.01, 0.01], [0.2, 0.2, 0.6]]], dtype=torch.float64)
    uniform = torch.distributions.Categorical(probs=torch.ones(3, dtype=torch.float64))
    expected = torch.distributions.kl_divergence(torch.distributions.Categorical(probs=q_BMN), uniform).sum(-1)
    torch.testing.assert_close(kl_to_uniform(q_BMN.log()), expected)
    assert float(kl_to_uniform(torch.zeros(1, 4, 8))) == pytest.approx(0, abs=1e-6)
    sharp = torch.full((1, 4, 8), -50.0)
    sharp[..., 2] = 50.0
    assert float(kl_to_uniform(sharp)) == pytest.approx(4 * math.log(8), rel=1e-5)


def test_the_density_of_a_pixel():
    x, mean = torch.rand(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64)
    for log_std in (0.3, -2.0):
        expected = torch.distributions.Normal(mean, math.exp(log_std)).log_prob(x)
        torch.testing.assert_close(log_normal(x, mean, torch.tensor(log_std, dtype=torch.float64)), expected)


def test_the_terms_are_those_of_the_bound():
    torch.manual_seed(0)
    vae = DiscreteVAE(3, 8, 4, CODES)
    x_BCHW = torch.rand(2, 3, 16, 16)
    torch.manual_seed(5)
    terms = vae.terms(x_BCHW, 0.7)
    torch.manual_seed(5)
    logits_BMN = vae.logits(x_BCHW).float()
    z_BMN = F.gumbel_softmax(logits_BMN, 0.7)
    log_std = MIN_LOG_STD + F.softplus(vae.log_std - MIN_LOG_STD)
    expected = torch.distributions.Normal(vae.decode(z_BMN @ vae.codebook.weight), log_std.exp()).log_prob(x_BCHW)
    torch.testing.assert_close(terms.reconstruction_B, -expected.sum((1, 2, 3)))
    torch.testing.assert_close(terms.kl_B, kl_to_uniform(logits_BMN))
    assert float(log_std.detach()) > MIN_LOG_STD


def test_gumbel_softmax_becomes_a_sample():
    """Cold it is one-hot, and its frequencies are the softmax; hot it is uniform."""
    torch.manual_seed(0)
    logits = torch.tensor([1.0, 0.0, -1.0]).expand(20_000, 3)
    cold = F.gumbel_softmax(logits, 0.01)
    assert float((cold.max(-1).values > 0.99).float().mean()) > 0.95
    counts, expected = cold.argmax(-1).bincount(minlength=3), 20_000 * logits[0].softmax(-1)
    assert float(((counts - expected) ** 2 / expected).sum()) < 13.8  # χ² of 2 degrees of freedom: 1 in 1,000
    torch.testing.assert_close(F.gumbel_softmax(logits, 1e4), torch.full((20_000, 3), 1 / 3), atol=2e-3, rtol=0)


def test_codes_and_images():
    torch.manual_seed(0)
    vae = DiscreteVAE(3, 8, 4, CODES)
    x_BCHW = torch.rand(2, 3, 16, 16)
    codes_BM = vae.encode(x_BCHW)
    drawn = vae.draw(codes_BM)
    assert codes_BM.shape == (2, 16) and drawn.shape == x_BCHW.shape and 0 <= drawn.min() <= drawn.max() <= 1
    assert vae.training and vae.encode(x_BCHW[:1]).equal(codes_BM[:1])  # in training, too, a code does not depend on the batch
    with torch.no_grad():
        whole = vae.eval().decode(vae.codebook(codes_BM))
        log_std = MIN_LOG_STD + F.softplus(vae.log_std - MIN_LOG_STD)
        torch.testing.assert_close(vae.reconstruction(x_BCHW), -log_normal(x_BCHW, whole, log_std).sum((1, 2, 3)))


def test_no_code_is_dead_from_the_start():
    images = np.stack([scene.pixels for scene in scenes("count=64,size=16,objects=1")])
    x_BCHW = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    for seed in range(3):
        torch.manual_seed(seed)
        assert len(DiscreteVAE(3, 32, 2, 64).logits(x_BCHW).argmax(-1).unique()) == 64
