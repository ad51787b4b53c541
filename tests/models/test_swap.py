"""`with_attention`: another mechanism in a model that is there already."""

import json

import pytest
import torch
from torch import nn

from regard import (
    MECHANISMS,
    DenseSynthesizer,
    LocalAttention,
    MixtureSynthesizer,
    Performer,
    SoftmaxAttention,
    full,
    keep,
    tokens,
    window,
)
from regard.errors import BadConfig, NotSupported, UnknownName
from regard.models import (
    GPT2,
    SIZES,
    Bert,
    BertConfig,
    GPT2Config,
    Llama,
    LlamaConfig,
    Longformer,
    LongformerConfig,
    Model,
    Seq2Seq,
    Seq2SeqConfig,
    Transformer,
    build,
    config_of,
)

N, D, H, L = 17, 12, 3, 20


def bert(**more):
    torch.manual_seed(0)
    return Bert(
        BertConfig(vocab_size=N, width=D, heads=H, depth=3, hidden=16, max_length=L, dropout=0.0, attention="softmax", **more)
    ).eval()


def gpt(**more):
    torch.manual_seed(0)
    return GPT2(GPT2Config(vocab_size=N, width=D, heads=H, depth=2, context_length=L, dropout=0.0, **more)).eval()


def llama():
    """Grouped queries and rotary places."""
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=N, width=D, heads=H, kv_heads=1, head_dim=4, hidden=16, depth=2, context_length=L)).eval()


def text():
    return torch.randint(N, (4, L), generator=torch.Generator().manual_seed(3))


# -- the same ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [bert, gpt, llama])
def test_softmax_under_full_is_the_same_to_the_bit(make):
    model, ids = make(), text()
    for attention_overrides in (
        model.with_attention("softmax"),
        model.with_attention(pattern=full),
        model.with_attention(SoftmaxAttention),
    ):
        assert torch.equal(attention_overrides(ids), model(ids))


def test_the_model_itself_is_left_alone():
    model, ids = bert(), text()
    before = model(ids)
    attention_overrides = model.with_attention(LocalAttention(2))
    with torch.no_grad():
        for parameter in attention_overrides.parameters():
            parameter.add_(1)
    assert torch.equal(model(ids), before) and model.config.attention_overrides == ()


# -- others ------------------------------------------------------------------------------------------------------------


def test_a_pattern_is_what_the_mechanism_of_that_pattern_does():
    model, ids = bert(), text()
    torch.testing.assert_close(model.with_attention(pattern=window(2) | tokens(0))(ids), model.with_attention("longformer(radius=2)")(ids))
    assert not torch.allclose(model.with_attention("longformer(radius=2)")(ids), model(ids))


def test_some_layers():
    model = bert().with_attention(Performer, layers=[0, -1])
    assert [type(heads.attention).__name__ for heads in model.attentions().values()] == ["Performer", "SoftmaxAttention", "Performer"]
    model = model.with_attention(pattern=window(3), layers=[1])
    assert dict(model.config.attention_overrides) == {
        "blocks.0.mixer": "performer",
        "blocks.2.mixer": "performer",
        "blocks.1.mixer": "softmax() under window(3)",
    }


def test_a_model_around_another():
    """It may show the config of what is inside, and nothing is swapped twice."""

    class Around(Model):
        def __init__(self, body):
            super().__init__()
            self.body, self.config = body, body.config

    around = Around(bert().with_attention("local"))
    assert type(around.body.blocks[0].mixer.attention) is LocalAttention
    with pytest.raises(NotSupported, match="inside it"):
        around.with_attention("softmax")


def test_only_self_attention_is_swapped():
    model = Transformer(SIZES["transformer-tiny"]).with_attention("linear", layers=[0, 2])
    assert list(model.attentions()) == ["encoder.0.mixer", "encoder.1.mixer", "decoder.0.mixer", "decoder.1.mixer"]
    kinds = {path: type(part.attention).__name__ for path, part in model.named_modules() if hasattr(part, "attention")}
    assert kinds["encoder.0.mixer"] == kinds["decoder.0.mixer"] == "LinearAttention" and kinds["decoder.0.cross"] == "SoftmaxAttention"


@pytest.mark.parametrize("mechanism", [m.facts.name for m in MECHANISMS])
@pytest.mark.parametrize("make", [bert, gpt, llama])
def test_every_mechanism_is_taken_and_learns_or_refused_by_name(make, mechanism):
    """And one that is taken by a language model goes step by step to the same numbers."""
    model, ids = make(), text()
    try:
        attention_overrides = model.with_attention(mechanism)
    except NotSupported as refused:
        assert "mechanisms that fit: " in str(refused)
        assert mechanism not in str(refused).partition("mechanisms that fit: ")[2].split(", ")
        return
    again = build(*json.loads(json.dumps(config_of(attention_overrides))))
    again.load_state_dict(attention_overrides.state_dict())
    if mechanism != "hard":  # which draws anew
        torch.testing.assert_close(again.eval()(ids), attention_overrides(ids))
    loss = attention_overrides(ids).square().mean()
    loss.backward()
    assert loss.isfinite() and all(p.grad is None or p.grad.isfinite().all() for p in attention_overrides.parameters())
    if make is not bert and mechanism != "hard":
        state = attention_overrides.start(len(ids))
        steps = torch.stack([attention_overrides.step(ids[:, t], state).logits_BN for t in range(L)], 1)
        torch.testing.assert_close(steps, attention_overrides(ids), atol=2e-4, rtol=1e-3)


def test_under_a_pattern_it_still_goes_step_by_step():
    model, ids = gpt().with_attention(pattern=window(3) | tokens(0)), text()
    state = model.start(len(ids))
    torch.testing.assert_close(torch.stack([model.step(ids[:, t], state).logits_BN for t in range(L)], 1), model(ids), atol=1e-5, rtol=1e-4)


# -- refused -----------------------------------------------------------------------------------------------------------


def test_what_a_language_model_cannot_have():
    with pytest.raises(
        NotSupported, match=r"nystrom does not fit blocks.0.mixer of gpt2: the decoder needs a strictly causal mechanism; .*softmax"
    ):
        gpt().with_attention("nystrom")
    with pytest.raises(NotSupported, match="only mask-causal"):
        gpt().with_attention("lsh")
    with pytest.raises(NotSupported, match="cannot stream"):
        Transformer(SIZES["transformer-tiny"]).with_attention("bigbird", layers=[2])
    Transformer(SIZES["transformer-tiny"]).with_attention("bigbird", layers=[0, 1])


def test_what_cannot_be_restricted():
    with pytest.raises(NotSupported, match=r"nystrom .* does not support `window\(3\) & lengths"):
        bert().with_attention("nystrom", pattern=window(3))


def test_what_cannot_be_written_down():
    with pytest.raises(BadConfig, match="without data"):
        bert().with_attention(pattern=keep(torch.ones(L, L, dtype=torch.bool)))

    class Mine(SoftmaxAttention):
        pass

    with pytest.raises(BadConfig, match="read back as"):
        bert().with_attention(Mine())
    with pytest.raises(BadConfig, match="plain values"):
        bert().with_attention(MixtureSynthesizer([DenseSynthesizer(head_dim=4, heads=H, max_length=L)]))


def test_no_such_layer_and_no_heads():
    with pytest.raises(UnknownName, match="3"):
        bert().with_attention("local", layers=[3])
    with pytest.raises(NotSupported, match="no MultiHead"):
        Seq2Seq(Seq2SeqConfig(source_vocab_size=5, target_vocab_size=5)).with_attention("local")
    longformer = Longformer(LongformerConfig(vocab_size=N, width=D, heads=H, depth=1, hidden=16, max_length=L))
    with pytest.raises(NotSupported, match="LongformerHeads"):
        longformer.with_attention("local")
    with pytest.raises(BadConfig, match="no self-attention at"):
        Bert(BertConfig(vocab_size=5, attention_overrides=(("blocks.9.mixer", "local"),)))


# -- and on it goes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [bert, gpt, llama])
@pytest.mark.parametrize("mechanism", ["longformer(radius=2)", "performer", "linear", "local(radius=3)", "softmax under window(2)"])
def test_a_swapped_model_is_fine_tuned(make, mechanism):
    """A few steps: it begins where the mechanism put it, and gets better."""
    torch.manual_seed(1)
    model, ids = make().with_attention(mechanism).train(), text()
    wanted = ids if make is bert else ids.roll(-1, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(15):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
