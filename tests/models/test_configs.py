"""Configs: what they take, how they refuse, and mechanisms by name in them."""

import json
from dataclasses import asdict, replace

import pytest

from regard.attention import LocalAttention, SoftmaxAttention
from regard.errors import BadConfig
from regard.layers import MultiHead
from regard.models import (
    GPT2,
    MODELS,
    Bert,
    BertConfig,
    Classifier,
    GPT2Config,
    LlamaConfig,
    Transformer,
    TransformerConfig,
    build,
    config_of,
)

gpt2 = GPT2Config(vocab_size=11, context_length=8, width=8, heads=2, depth=2)
bert = BertConfig(vocab_size=11, max_length=8, width=8, heads=2, depth=2, hidden=16)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"width": 0}, "GPT2Config: width=0; expected `int` >= 1"),
        ({"width": 8.0}, "GPT2Config: width=8.0; expected `int`, got `float`"),
        ({"depth": True}, "GPT2Config: depth=True; expected `int`, got `bool`"),
        ({"dropout": 1}, "GPT2Config: dropout=1; expected `float` < 1.0"),
        ({"dropout": float("nan")}, "GPT2Config: dropout=nan; expected `float` >= 0.0"),
        (
            {"attention_overrides": ("x",)},
            "GPT2Config: attention_overrides=('x',); expected `array`, got `str` - at `attention_overrides[0]`",
        ),
        ({"width": 0, "heads": "2"}, "GPT2Config: width=0; expected `int` >= 1; GPT2Config: heads='2'; expected `int`, got `str`"),
    ],
)
def test_an_error_says_field_value_and_what_is_expected(setting, says):
    with pytest.raises(BadConfig) as error:
        replace(gpt2, **setting)
    assert str(error.value) == says


def test_floats_are_not_all_shares():
    config = LlamaConfig(vocab_size=11, base=1234.5, eps=2.0)
    assert (config.base, config.eps, config.dropout) == (1234.5, 2.0, 0.0)
    assert LlamaConfig(vocab_size=11, base=500_000).base == 500_000.0
    with pytest.raises(BadConfig, match="base=0; expected `float` > 0"):
        LlamaConfig(vocab_size=11, base=0)


def test_a_config_comes_back_from_json():
    for config in (gpt2, TransformerConfig(source_vocab_size=9, target_vocab_size=9, attention=("softmax", "linear", "additive"))):
        assert type(config)(**json.loads(json.dumps(asdict(config)))) == config


def test_a_name_stands_for_all_layers():
    assert replace(gpt2, attention="linear").attention == ("linear",)
    model = GPT2(replace(gpt2, attention="local(radius=2)"))
    assert [type(part.attention) for part in model.attentions().values()] == [LocalAttention] * 2
    config = TransformerConfig(source_vocab_size=9, target_vocab_size=9, width=8, heads=2, depth=(1, 1), hidden=8, attention="linear")
    assert config.attention == ("linear",) * 3
    kinds = [part.attention.facts.name for part in Transformer(config).modules() if isinstance(part, MultiHead)]
    assert kinds == ["linear"] * 3


@pytest.mark.parametrize("given", [SoftmaxAttention(), SoftmaxAttention, (SoftmaxAttention(),), ["softmax", LocalAttention]])
def test_a_config_takes_names_not_mechanisms(given):
    with pytest.raises(BadConfig, match=r"GPT2Config: attention=.*; expected the name of a mechanism"):
        replace(gpt2, attention=given)
    with pytest.raises(BadConfig, match=r"BertConfig: attention=.*; expected `str`"):
        replace(bert, attention=given)


def test_mechanisms_in_turn():
    model = Bert(bert).with_attention(("local(radius=2)", SoftmaxAttention))
    assert [type(part.attention) for part in model.attentions().values()] == [LocalAttention, SoftmaxAttention]
    assert dict(model.config.attention_overrides) == {"blocks.0.mixer": "local(radius=2)", "blocks.1.mixer": "softmax"}
    with pytest.raises(BadConfig, match="in turn"):
        model.with_attention(())


def test_overrides_are_applied_by_the_constructor():
    model = GPT2(gpt2).with_attention("linear", layers=[1])
    for again in (GPT2(model.config), build(*config_of(model))):
        assert [part.attention.facts.name for part in again.attentions().values()] == ["softmax", "linear"]


def test_a_classifier_takes_another_mechanism_in_its_body():
    model = Classifier(Bert(bert), 3)
    other = model.with_attention("linear")
    assert other.config == other.body.config and dict(other.config.attention_overrides) == dict.fromkeys(other.body.attentions(), "linear")
    assert all(part.attention.facts.name == "softmax" for part in model.body.attentions().values())


def test_a_model_takes_its_own_config():
    with pytest.raises(BadConfig, match="expected a GPT2Config"):
        GPT2(bert)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.facts.name)
def test_every_model_says_how_long_a_sequence_may_be(model):
    assert model.length_setting in model.Config.__dataclass_fields__
