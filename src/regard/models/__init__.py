"""Published systems, built of the layers, one file each, oldest first. The imports are the list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields, replace
from inspect import isfunction
from typing import Any

from ..errors import BadConfig, UnknownName
from ._labels import Labeller as Labeller
from ._language import LanguageModel as LanguageModel
from ._language import LanguageModelConfig as LanguageModelConfig
from ._language import TextEncoder as TextEncoder
from ._model import Model as Model
from ._model import ModelConfig as ModelConfig
from ._model import ModelFacts as ModelFacts
from ._model import Step as Step
from ._translator import Translator as Translator
from ._translator import TranslatorConfig as TranslatorConfig
from .bert import Bert as Bert
from .bert import BertConfig as BertConfig
from .bert import bert_base as bert_base
from .bert import bert_large as bert_large
from .bert import bert_medium as bert_medium
from .bert import bert_mini as bert_mini
from .bert import bert_sized as bert_sized
from .bert import bert_small as bert_small
from .bert import bert_tiny as bert_tiny
from .big_bird import BigBird as BigBird
from .big_bird import BigBirdConfig as BigBirdConfig
from .fnet import FNet as FNet
from .fnet import FNetConfig as FNetConfig
from .gpt import GPT as GPT
from .gpt import GPTConfig as GPTConfig
from .gpt import openai_gpt as openai_gpt
from .gpt2 import GPT2 as GPT2
from .gpt2 import GPT2Config as GPT2Config
from .gpt2 import gpt2_large as gpt2_large
from .gpt2 import gpt2_medium as gpt2_medium
from .gpt2 import gpt2_small as gpt2_small
from .gpt2 import gpt2_xl as gpt2_xl
from .gpt3 import GPT3 as GPT3
from .gpt3 import GPT3Config as GPT3Config
from .gpt3 import gpt3_3b as gpt3_3b
from .gpt3 import gpt3_7b as gpt3_7b
from .gpt3 import gpt3_13b as gpt3_13b
from .gpt3 import gpt3_175b as gpt3_175b
from .gpt3 import gpt3_large as gpt3_large
from .gpt3 import gpt3_medium as gpt3_medium
from .gpt3 import gpt3_small as gpt3_small
from .gpt3 import gpt3_tiny as gpt3_tiny
from .gpt3 import gpt3_xl as gpt3_xl
from .llama import Llama as Llama
from .llama import LlamaConfig as LlamaConfig
from .llama import llama3_8b as llama3_8b
from .llama import llama31_8b as llama31_8b
from .llama import llama_7b as llama_7b
from .llama import llama_13b as llama_13b
from .llama import llama_33b as llama_33b
from .llama import llama_65b as llama_65b
from .llama import llama_tiny as llama_tiny
from .llama import mistral_7b as mistral_7b
from .llama import qwen2_half_b as qwen2_half_b
from .longformer import Longformer as Longformer
from .longformer import LongformerConfig as LongformerConfig
from .luong import Luong as Luong
from .luong import LuongConfig as LuongConfig
from .luong import luong_paper as luong_paper
from .nystromformer import Nystromformer as Nystromformer
from .nystromformer import NystromformerConfig as NystromformerConfig
from .reformer import Reformer as Reformer
from .reformer import ReformerConfig as ReformerConfig
from .rnn_lm import RNNLM as RNNLM
from .rnn_lm import RNNLMConfig as RNNLMConfig
from .rnn_lm import zaremba_large as zaremba_large
from .rnn_lm import zaremba_medium as zaremba_medium
from .rnnsearch import RNNsearch as RNNsearch
from .rnnsearch import RNNsearchConfig as RNNsearchConfig
from .rnnsearch import rnnsearch_paper as rnnsearch_paper
from .seq2seq import Seq2Seq as Seq2Seq
from .seq2seq import Seq2SeqConfig as Seq2SeqConfig
from .seq2seq import seq2seq_paper as seq2seq_paper
from .transformer import Transformer as Transformer
from .transformer import TransformerConfig as TransformerConfig
from .transformer import transformer_base as transformer_base
from .transformer import transformer_big as transformer_big
from .transformer import transformer_tiny as transformer_tiny

# The list everything else reads, derived from the imports above: a new model is one line there.
MODELS: tuple[type[Model], ...] = tuple(
    sorted(
        (part for part in list(vars().values()) if isinstance(part, type) and issubclass(part, Model) and hasattr(part, "facts")),
        key=lambda model: (model.facts.year, model.facts.name),
    )
)


# Published sizes by name, derived as well: a function above that returns a config is one, `gpt2_small` being "gpt2-small".
SIZES: dict[str, Callable[[], ModelConfig]] = {
    name.replace("_", "-"): part
    for name, part in list(vars().items())
    if isfunction(part)
    and str(part.__annotations__.get("return")).endswith("Config")
    and part.__code__.co_argcount == len(part.__defaults__ or ())  # nothing need be said
}


def of_size(name: str, **settings: Any) -> Model:
    """The published model called `name`, freshly begun: `of_size("gpt2-small")`. Settings given here replace the published ones."""
    if name not in SIZES:
        raise UnknownName("size of a model", name, SIZES)
    config = replace(SIZES[name](), **settings)
    return next(model for model in MODELS if model.Config is type(config))(config)


def build(name: str, config: Mapping[str, Any]) -> Model:
    """The model called `name` with these settings, freshly begun: `build(*config_of(model))` is one like `model`."""
    known = {model.facts.name: model for model in MODELS}
    if name not in known:
        raise UnknownName("model", name, known)
    settings = {field.name: field for field in fields(known[name].Config)}
    for key in config:
        if key not in settings:
            raise UnknownName(f"setting of {name}", str(key), settings)
    missing = [key for key, field in settings.items() if field.default is MISSING and key not in config]
    if missing:
        raise BadConfig(f"{name} cannot be built without {' and '.join(missing)}; got {', '.join(config) or 'no settings'}")
    return known[name](known[name].Config(**config))


def config_of(model: Model) -> tuple[str, dict[str, Any]]:
    """The name and the settings of a model as plain values: what a run directory keeps, and `build` takes."""
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(model.config).items()}
    return model.facts.name, plain
