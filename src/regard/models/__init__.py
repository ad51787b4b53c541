"""Published systems, built of the layers, one file each, oldest first. The imports are the list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
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
from .luong import Luong as Luong
from .luong import LuongConfig as LuongConfig
from .luong import luong_paper as luong_paper
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
