"""BERT and its kin: sizes, padding, heads, mechanisms by name; what transformers says of them is in tests/interop."""

import json
from dataclasses import replace

import pytest
import torch

from regard import MECHANISMS, MixtureSynthesizer, capture
from regard.errors import BadConfig, NotSupported, ShapeError, UnknownName
from regard.layers import Packing
from regard.layers.spec import Spec
from regard.models import (
    MODELS,
    SIZES,
    Albert,
    AlbertConfig,
    Bert,
    BertConfig,
    BigBird,
    BigBirdConfig,
    FNet,
    FNetConfig,
    Longformer,
    LongformerConfig,
    ModernBert,
    ModernBertConfig,
    MPNet,
    MPNetConfig,
    Nystromformer,
    NystromformerConfig,
    Reformer,
    ReformerConfig,
    TextEncoder,
    build,
    config_of,
)

N, D, H, F, L = 13, 12, 3, 14, 22
sizes = {"vocab_size": N, "width": D, "hidden": F, "max_length": L, "dropout": 0.0}
SMALL = {
    "bert": Bert(BertConfig(**sizes, heads=H, depth=2, attention="softmax")),
    "longformer": Longformer(LongformerConfig(**sizes, heads=H, depth=2, window=(2, 4), at=(0, 3), attention_dropout=0.0)),
    "big_bird": BigBird(BigBirdConfig(**sizes, heads=H, depth=2, block=2, random=1, attention_dropout=0.0)),
    "big_bird, first block again": BigBird(BigBirdConfig(**sizes, heads=H, depth=2, block=2, random=1, drawn=False, attention_dropout=0.0)),
    "fnet": FNet(FNetConfig(**sizes, depth=2)),
    "nystromformer": Nystromformer(NystromformerConfig(**sizes, heads=H, depth=2, landmarks=3, kernel=5)),
    "albert": Albert(AlbertConfig(**sizes, heads=H, depth=3, groups=2, embedding_width=6)),
    "mpnet": MPNet(MPNetConfig(**sizes, heads=H, depth=2)),
    "modernbert": ModernBert(ModernBertConfig(**sizes, heads=H, depth=3, attention=("softmax", "local(radius=2)"))),
    "reformer": Reformer(ReformerConfig(**sizes, heads=H, head_dim=5, chunk=(4, 4), rounds=2, buckets=(4,), attention_dropout=0.0)),
}
ALONE = [name for name in SMALL if not name.startswith("big_bird") and name not in ("nystromformer", "reformer")]


def count(config):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Bert(config).parameters())


def test_every_encoder_is_tested_here():
    missing = {model for model in MODELS if issubclass(model, TextEncoder)} - {type(model) for model in SMALL.values()}
    assert not missing, f"add a line to SMALL in tests/models/test_encoders.py for {', '.join(model.__name__ for model in missing)}"


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_published_sizes():
    """transformers' BertForPreTraining has as many; the papers round to 110, 340, 4.4, 11.3, 29.1 and 41.7 million."""
    assert count(SIZES["bert-base"]) == 110_106_428
    assert count(SIZES["bert-large"]) == 336_226_108
    # Turc et al. count the encoder and the pooler alone, 4.4, 11.2, 28.8 and 41.4 million; the heads are on top
    found = [count(SIZES[f"bert-{size}"]) for size in ("tiny", "mini", "small", "medium")]
    assert found == [4_433_468, 11_267_900, 29_058_876, 41_668_412]
    base = SIZES["bert-base"]
    assert (base.depth, base.width, base.heads, base.hidden) == (12, 768, 12, 3072)


def test_sizes_by_hand():
    c = replace(SIZES["bert-tiny"], vocab_size=100)
    d, f = c.width, c.hidden
    block = 4 * (d * d + d) + d * f + f + f * d + d + 4 * d
    heads = (d * d + d) + (d * d + d + 2 * d + 100) + 2 * d + 2
    assert count(c) == (100 + 512 + 2) * d + 2 * d + 2 * block + heads


# -- what all share ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=SMALL)
def model(request) -> TextEncoder:
    return SMALL[request.param].eval()


def batch(length=L):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(N, (3, length), generator=generator), torch.tensor([length, 5, length - 3])


def test_shapes(model):
    ids, n = batch()
    x = model.features(ids, n)
    assert x.shape[:2] == ids.shape and model(ids, n).shape == (*ids.shape, N)
    assert model.pooled(x).shape == (3, x.shape[2])
    y = model.sentence_embeddings(ids, n)
    torch.testing.assert_close(y.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(y[1], torch.nn.functional.normalize(x[1, :5].mean(0), dim=0))


def test_packed_is_padded(model):
    ids, n = batch()
    packing = Packing.of(n, L)
    x_1TD = model.features(ids, n, packing=packing)
    torch.testing.assert_close(x_1TD, packing.pack(model.features(ids, n)))


def test_padding_is_never_read(model):
    ids, n = batch()
    other = torch.where(torch.arange(L) < n[:, None], ids, (ids + 5) % N)
    packing = Packing.of(n, L)
    torch.testing.assert_close(model.features(ids, n, packing=packing), model.features(other, n, packing=packing), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ALONE)
def test_a_row_is_read_as_if_it_were_alone(name):
    """Where a model counts padding (the last block of BigBird, the chunks of Reformer), or begins at one scale for all rows, this cannot be."""
    model, (ids, n) = SMALL[name].eval(), batch()
    together = model.features(ids, n)
    for row, real in enumerate(n.tolist()):
        torch.testing.assert_close(together[row, :real], model.features(ids[row : row + 1, :real])[0], atol=1e-5, rtol=1e-4)


def test_kinds_of_text():
    model, (ids, n) = SMALL["bert"].eval(), batch()
    kind = torch.zeros_like(ids)
    torch.testing.assert_close(model.features(ids, n, kind), model.features(ids, n))
    kind[:, 3:] = 1
    assert not torch.allclose(model.features(ids, n, kind), model.features(ids, n))
    packing = Packing.of(n, L)
    torch.testing.assert_close(model.features(ids, n, kind, packing), packing.pack(model.features(ids, n, kind)))
    with pytest.raises(NotSupported, match="two texts"):
        SMALL["reformer"].features(ids, n, kind)


def test_it_learns_everywhere(model):
    """Every parameter has a gradient that is finite; the reversible stack has its own way back."""
    model = build(*config_of(model)).train()
    ids, n = batch()
    x = model.features(ids, n)
    loss = model.logits(x).square().mean() + model.pooled(x).square().mean()
    if getattr(model, "nsp_head", None) is not None:
        loss = loss + model.nsp_logits(model.pooled(x)).square().mean()
    loss.backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert without == []


def test_too_long(model):
    ids = torch.zeros(1, L + 1, dtype=torch.long)
    if isinstance(model, ModernBert):  # rotary embeddings have no last position
        assert model.features(ids).isfinite().all()
    else:
        with pytest.raises(ShapeError, match=f"{L + 1} tokens"):
            model.features(ids)


def test_config_goes_to_a_file_and_back(model):
    name, settings = config_of(model)
    again = build(name, json.loads(json.dumps(settings)))
    assert again.config == model.config and {k: v.shape for k, v in again.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }


def test_heads_that_are_not_there():
    bare = Bert(replace(SMALL["bert"].config, pooler=False, mlm_head=False, nsp_head=False)).eval()
    ids, n = batch()
    x = bare.features(ids, n)
    torch.testing.assert_close(bare.pooled(x), x[:, 0])
    with pytest.raises(NotSupported, match="mlm_head=True"):
        bare(ids, n)
    with pytest.raises(NotSupported, match="nsp_head=True"):
        bare.nsp_logits(bare.pooled(x))
    with pytest.raises(BadConfig, match="pooler"):
        BertConfig(vocab_size=N, pooler=False)


def test_short_big_bird_is_bert():
    """Below (5 + 2·random)·block tokens all see all."""
    model = SMALL["big_bird"].eval()
    bert = Bert(BertConfig(**sizes, heads=H, depth=2, attention="softmax", activation="gelu_tanh")).eval()
    bert.load_state_dict(model.state_dict())
    for length in (14, 15):
        ids, _ = batch(length)
        assert torch.allclose(model(ids), bert(ids), atol=1e-5) == (length == 14)


def test_what_it_looks_at_can_be_seen():
    model, (ids, n) = SMALL["reformer"].eval(), batch()
    with capture(model) as maps:
        model.features(ids, n)
    assert maps.layers == [f"stack.blocks.{n}.mixer.attention" for n in range(4)]
    with capture(SMALL["bert"].eval()) as maps:
        SMALL["bert"].features(ids, n)
    torch.testing.assert_close(maps.view("blocks.0.mixer.attention").weights_BHLM[0].sum(-1), torch.ones(H, L))


# -- any mechanism, as a line of a config ------------------------------------------------------------------------------

FIT = [m for m in MECHANISMS if m.facts.patterns == "any" or {"full", "lengths"} <= set(m.facts.patterns)]


@pytest.mark.parametrize("mechanism", FIT, ids=lambda m: m.facts.name)
def test_any_mechanism(mechanism):
    model = Bert(replace(SMALL["bert"].config, attention=mechanism.facts.name))
    ids, n = batch()
    out = model(ids, n)
    assert out.isfinite().all()
    out.square().mean().backward()
    assert type(model.blocks[0].mixer.attention) is mechanism


@pytest.mark.parametrize(
    ("line", "again"),
    [
        ("local", "local"),
        ("local(radius=64)", "local(radius=64)"),
        ("softmax( dropout = 0.5 )", "softmax(dropout=0.5)"),
        ("lsh(buckets=(4, 8), seed=None)", "lsh(buckets=(4, 8), seed=None)"),
        ("softmax under window(3)|tokens(0)", "softmax under window(3) | tokens(0)"),
    ],
)
def test_lines(line, again):
    spec = Spec.read(line)
    assert str(spec) == again and Spec.read(again) == spec
    spec.build(heads=2, head_dim=8, length=16)


@pytest.mark.parametrize(
    "line", ["local(64)", "local(radius=", "1 + 1", "local(radius=open)", "", "local(**{})", "local(radius=__import__('os'))"]
)
def test_lines_that_are_none(line):
    with pytest.raises(BadConfig, match="mechanism"):
        Spec.read(line)


def test_lines_with_wrong_names():
    with pytest.raises(UnknownName, match="'softmax'"):
        Spec.read("sofmax")
    with pytest.raises(UnknownName, match="size"):
        Spec.read("local(size=3)").build(heads=1, head_dim=8, length=9)
    with pytest.raises(UnknownName):
        BertConfig(vocab_size=9, attention="nothing")


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.facts.name)
def test_settings_make_one_like_it(mechanism):
    one = mechanism.sized(heads=4, head_dim=8, length=32)
    if mechanism is MixtureSynthesizer:
        return  # made of other mechanisms, which no line can say
    spec = Spec.read(str(Spec(mechanism, one.settings)))
    assert spec.settings == one.settings
    again = spec.build(heads=4, head_dim=8, length=32)
    assert repr(again) == repr(one)
    assert {n: p.shape for n, p in again.named_parameters()} == {n: p.shape for n, p in one.named_parameters()}
