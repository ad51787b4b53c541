"""CLIP: against transformers with the same parameters, the loss against its formula, and where a text is read."""

import math

import pytest
import torch

from regard.errors import BadConfig, ShapeError
from regard.models import CLIP, SIZES, CLIPConfig, find_model
from regard.models.clip import contrastive_loss

TEXT = {"vocab_size": 50, "end": 49, "max_length": 11, "width": 24, "heads": 3, "depth": 2, "hidden": 40, "embedding": 20}
IMAGE = {"image_size": 12, "patch_size": 4, "image_width": 32, "image_heads": 4, "image_depth": 3, "image_hidden": 48}


def made(**more):
    torch.manual_seed(0)
    return CLIP(CLIPConfig(**TEXT | IMAGE | more)).eval()


def texts():
    torch.manual_seed(1)
    ids_BL = torch.randint(2, 48, (4, 11))
    for row, at in ((0, 5), (1, 10), (2, 3), (3, 7), (3, 9)):  # the last has two ends: the first counts
        ids_BL[row, at] = 49
    return ids_BL


@torch.no_grad()
@pytest.mark.parametrize("end", [49, 2])  # old files say 2, and mean the largest id
def test_transformers_computes_the_same(end):
    transformers = pytest.importorskip("transformers")
    from regard.interop.families.clip import CLIPFamily
    from regard.interop.names import from_hf, to_hf

    text = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3}
    text |= {"max_position_embeddings": 11, "eos_token_id": end, "bos_token_id": 48, "pad_token_id": 1}
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 12,
        "patch_size": 4,
    }
    torch.manual_seed(0)
    theirs = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=20)).eval()
    for parameter in theirs.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    ours, state = made(end=end if end != 2 else None), theirs.state_dict()
    table = CLIPFamily().table(vars(ours.config))
    assert {name for entry in table for name in entry.hf_names} == set(state)
    ours.load_state_dict(from_hf(state, table))
    assert all(x.equal(state[name]) for name, x in to_hf(ours.state_dict(), table).items())
    x_BCHW, ids_CL = torch.randn(3, 3, 12, 12), texts()
    expected = theirs(input_ids=ids_CL, pixel_values=x_BCHW)
    torch.testing.assert_close(ours(x_BCHW, ids_CL), expected.logits_per_image, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.encode_images(x_BCHW), expected.image_embeds, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.encode_texts(ids_CL), expected.text_embeds, atol=1e-6, rtol=1e-5)


def test_the_loss_is_its_formula():
    torch.manual_seed(0)
    i, t, scale = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64), 3.0
    logits = [[scale * float(a @ b) / float(a.norm() * b.norm()) for b in t] for a in i]
    total = 0.0
    for n in range(5):
        total -= math.log(math.exp(logits[n][n]) / sum(math.exp(x) for x in logits[n])) / 10
        total -= math.log(math.exp(logits[n][n]) / sum(math.exp(row[n]) for row in logits)) / 10
    assert float(contrastive_loss(torch.tensor(logits, dtype=torch.float64))) == pytest.approx(total, rel=1e-12)


@torch.no_grad()
def test_what_follows_the_end_does_not_count():
    model, ids_BL = made(), texts()
    other = ids_BL.clone()
    other[0, 6:], other[2, 4:], other[3, 8] = 3, 4, 5
    assert model.encode_texts(ids_BL).equal(model.encode_texts(other))
    other[0, 4] += 1
    assert not model.encode_texts(ids_BL)[0].equal(model.encode_texts(other)[0])
    torch.testing.assert_close(model.encode_texts(ids_BL).norm(dim=-1), torch.ones(4))
    assert float(model.scale) == pytest.approx(1 / 0.07)


def test_published_sizes():
    counts = {"clip-vit-base-32": 151_277_313, "clip-vit-base-16": 149_620_737, "clip-vit-large-14": 427_616_513}
    for name, count in counts.items():
        with torch.device("meta"):
            model = find_model(name)(SIZES[name])
        assert sum(p.numel() for p in model.parameters()) == count


def test_errors():
    with pytest.raises(BadConfig, match="multiple of image_heads"):
        made(image_heads=5)
    with pytest.raises(ShapeError, match="reads 11"):
        made().encode_texts(torch.zeros(1, 12, dtype=torch.long))
