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
    Bert,
    BertConfig,
    GPT2Config,
    Llama,
    LlamaConfig,
    Longformer,
    LongformerConfig,
    Seq2Seq,
    Seq2SeqConfig,
    Transformer,
    build,
    config_of,
    transformer_tiny,
)

N, D, H, L = 17, 12, 3, 20


def bert(**more):
    torch.manual_seed(0)
    return Bert(BertConfig(vocab=N, width=D, heads=H, depth=3, hidden=16, length=L, dropout=0.0, attention="softmax", **more)).eval()


def gpt(**more):
    torch.manual_seed(0)
    return GPT2(GPT2Config(vocab=N, width=D, heads=H, depth=2, length=L, dropout=0.0, **more)).eval()


def llama():
    """Grouped queries and rotary places."""
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab=N, width=D, heads=H, kv_heads=1, head_width=4, hidden=16, depth=2, length=L)).eval()


def text():
    return torch.randint(N, (4, L), generator=torch.Generator().manual_seed(3))


# -- the same ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [bert, gpt, llama])
def test_softmax_under_full_is_the_same_to_the_bit(make):
    model, ids = make(), text()
    for swapped in (model.with_attention("softmax"), model.with_attention(pattern=full), model.with_attention(SoftmaxAttention)):
        assert torch.equal(swapped(ids), model(ids))


def test_the_model_itself_is_left_alone():
    model, ids = bert(), text()
    before = model(ids)
    swapped = model.with_attention(LocalAttention(2))
    with torch.no_grad():
        for parameter in swapped.parameters():
            parameter.add_(1)
    assert torch.equal(model(ids), before) and model.config.swapped == ()


# -- others ------------------------------------------------------------------------------------------------------------


def test_a_pattern_is_what_the_mechanism_of_that_pattern_does():
    model, ids = bert(), text()
    torch.testing.assert_close(model.with_attention(pattern=window(2) | tokens(0))(ids), model.with_attention("longformer(radius=2)")(ids))
    assert not torch.allclose(model.with_attention("longformer(radius=2)")(ids), model(ids))


def test_some_layers():
    model = bert().with_attention(Performer, layers=[0, -1])
    assert [type(heads.attention).__name__ for heads in model.attentions().values()] == ["Performer", "SoftmaxAttention", "Performer"]
    model = model.with_attention(pattern=window(3), layers=[1])
    assert dict(model.config.swapped) == {
        "blocks.0.mixer": "performer",
        "blocks.2.mixer": "performer",
        "blocks.1.mixer": "softmax() under window(3)",
    }


def test_only_self_attention_is_swapped():
    model = Transformer(transformer_tiny()).with_attention("linear", layers=[0, 2])
    assert list(model.attentions()) == ["encoder.0.mixer", "encoder.1.mixer", "decoder.0.mixer", "decoder.1.mixer"]
    kinds = {path: type(part.attention).__name__ for path, part in model.named_modules() if hasattr(part, "attention")}
    assert kinds["encoder.0.mixer"] == kinds["decoder.0.mixer"] == "LinearAttention" and kinds["decoder.0.cross"] == "SoftmaxAttention"


@pytest.mark.parametrize("mechanism", [m.facts.name for m in MECHANISMS])
@pytest.mark.parametrize("make", [bert, gpt, llama])
def test_every_mechanism_is_taken_and_learns_or_refused_by_name(make, mechanism):
    """And one that is taken by a language model goes step by step to the same numbers."""
    model, ids = make(), text()
    try:
        swapped = model.with_attention(mechanism)
    except NotSupported as refused:
        assert "those that can: " in str(refused)
        assert mechanism not in str(refused).partition("those that can: ")[2].split(", ")
        return
    again = build(*json.loads(json.dumps(config_of(swapped))))
    again.load_state_dict(swapped.state_dict())
    facts = next(m.facts for m in MECHANISMS if m.facts.name == mechanism)
    if not facts.random:
        torch.testing.assert_close(again.eval()(ids), swapped(ids))
    loss = swapped(ids).square().mean()
    loss.backward()
    assert loss.isfinite() and all(p.grad is None or p.grad.isfinite().all() for p in swapped.parameters())
    if make is not bert and not facts.random:
        state = swapped.begin(len(ids))
        steps = torch.stack([swapped.step(ids[:, t], state).logits_BN for t in range(L)], 1)
        torch.testing.assert_close(steps, swapped(ids), atol=2e-4, rtol=1e-3)


def test_under_a_pattern_it_still_goes_step_by_step():
    model, ids = gpt().with_attention(pattern=window(3) | tokens(0)), text()
    state = model.begin(len(ids))
    torch.testing.assert_close(torch.stack([model.step(ids[:, t], state).logits_BN for t in range(L)], 1), model(ids), atol=1e-5, rtol=1e-4)


# -- refused -----------------------------------------------------------------------------------------------------------


def test_what_a_language_model_cannot_have():
    with pytest.raises(NotSupported, match=r"nystrom cannot be at blocks.0.mixer of gpt2: this part must not look ahead; .*softmax"):
        gpt().with_attention("nystrom")
    with pytest.raises(NotSupported, match="statistics of the future"):
        gpt().with_attention("lsh")
    with pytest.raises(NotSupported, match="step by step"):
        Transformer(transformer_tiny()).with_attention("bigbird", layers=[2])
    Transformer(transformer_tiny()).with_attention("bigbird", layers=[0, 1])


def test_what_shares_key_heads():
    ungrouped = [
        m.facts.name
        for m in MECHANISMS
        if not m.facts.grouped and m.facts.causal == "strict" and m.facts.streaming and not m.facts.fixed_memory
    ]
    assert ungrouped
    for name in ungrouped:
        with pytest.raises(NotSupported, match="3 query heads share 1 key heads"):
            llama().with_attention(name)


def test_what_cannot_be_restricted():
    with pytest.raises(NotSupported, match=r"nystrom .* cannot be restricted to `window\(3\) & lengths"):
        bert().with_attention("nystrom", pattern=window(3))


def test_what_cannot_be_written_down():
    with pytest.raises(BadConfig, match="without data"):
        bert().with_attention(pattern=keep(torch.ones(L, L, dtype=torch.bool)))

    class Mine(SoftmaxAttention):
        pass

    with pytest.raises(BadConfig, match="read back as"):
        bert().with_attention(Mine())
    with pytest.raises(BadConfig, match="plain values"):
        bert().with_attention(MixtureSynthesizer([DenseSynthesizer(width=4, heads=H, length=L)]))


def test_no_such_layer_and_no_heads():
    with pytest.raises(UnknownName, match="3"):
        bert().with_attention("local", layers=[3])
    with pytest.raises(NotSupported, match="no MultiHead"):
        Seq2Seq(Seq2SeqConfig(source_vocab=5, target_vocab=5)).with_attention("local")
    longformer = Longformer(LongformerConfig(vocab=N, width=D, heads=H, depth=1, hidden=16, length=L))
    with pytest.raises(NotSupported, match="LongformerHeads"):
        longformer.with_attention("local")
    with pytest.raises(BadConfig, match="nothing at"):
        Bert(BertConfig(vocab=5, swapped=(("blocks.9.mixer", "local"),)))


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
