"""Published models built from the layers, one file each. The imports are the list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from ..errors import BadConfig, UnknownName
from ._copy import CopyConfig, CopyModel, CopyOutputs, coverage_before, coverage_loss
from ._encoder import TextEncoder, TextEncoderConfig
from ._headed import Headed, body_of
from ._image import ImageEncoder, ImageEncoderConfig
from ._language import LanguageModel, LanguageModelConfig
from ._model import Model, ModelConfig, ModelFacts, Sizes, Step, device_of, eval_mode
from ._reader import Reader, Reading
from ._text import DocumentModel, DocumentModelConfig, TextModel, TextModelConfig
from ._translator import Translator, TranslatorConfig
from .bart import Bart, BartConfig
from .bert import Bert, BertConfig
from .big_bird import BigBird, BigBirdConfig
from .classifier import Classifier
from .clip import CLIP, CLIPConfig
from .dalle import DALLE, DALLEConfig
from .draw import Draw, DrawConfig, Drawing
from .esim import ESIM, ESIMConfig
from .fnet import FNet, FNetConfig
from .gemma import Gemma, GemmaConfig
from .gpt import GPT, GPTConfig
from .gpt2 import GPT2, GPT2Config
from .gpt3 import GPT3, GPT3Config
from .gpt_neox import GPTNeoX, GPTNeoXConfig
from .han import HAN, HANConfig
from .handwriting import Handwriting, HandwritingConfig
from .image_transformer import ImageTransformer, ImageTransformerConfig
from .infersent import InferSent, InferSentConfig
from .llama import Llama, LlamaConfig
from .longformer import Longformer, LongformerConfig
from .luong import Luong, LuongConfig
from .mlp_mixer import MLPMixer, MLPMixerConfig
from .modernbert import ModernBert, ModernBertConfig
from .nystromformer import Nystromformer, NystromformerConfig
from .opt import OPT, OPTConfig
from .pointer_generator import PointerGenerator, PointerGeneratorConfig
from .pointer_transformer import PointerTransformer, PointerTransformerConfig
from .reformer import Reformer, ReformerConfig
from .rnn_lm import RNNLM, RNNLMConfig
from .rnnsearch import RNNsearch, RNNsearchConfig
from .san import SAN, SANConfig
from .self_attentive import SelfAttentive, SelfAttentiveConfig
from .seq2seq import Seq2Seq, Seq2SeqConfig
from .show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from .span_reader import SpanReader
from .t5 import T5, T5Config
from .transformer import Transformer, TransformerConfig
from .vit import ViT, ViTConfig
from .vivit import ViViT, ViViTConfig

# The list everything else reads, collected from the imports above, oldest first: a new model is one line there.
MODELS: tuple[type[Model], ...] = tuple(
    sorted(
        (part for part in list(vars().values()) if isinstance(part, type) and issubclass(part, Model) and hasattr(part, "facts")),
        key=lambda model: (model.facts.year, model.facts.name),
    )
)
SIZES: Sizes = {name: config for model in MODELS for name, config in model.sizes.items()}


def of_size(name: str, **settings: Any) -> Model:
    """The published model called `name`, freshly initialised: `of_size("gpt2-small")`. Settings given here replace the published ones."""
    if name not in SIZES:
        raise UnknownName("model size", name, SIZES)
    return build(name, settings)


def find_model(name: str) -> type[Model]:
    """The class of the model called `name`, or of the published size called so."""
    known = {model.facts.name: model for model in MODELS}
    sizes = {size: model for model in MODELS for size in model.sizes}
    if name not in known | sizes:
        raise UnknownName("model", name, known | sizes)
    return (known | sizes)[name]


def build(name: str, config: Mapping[str, Any] | None = None, /, **more: Any) -> Model:
    """The model called `name` with these settings, freshly initialised; `build(*config_of(model))` has the architecture of `model`.

    `name` may be a published size; settings then replace the published ones: `build("gpt2-small", vocab_size=65, attention="linear")`.
    """
    model = find_model(name)
    config = (asdict(model.sizes[name]) if name in SIZES else {}) | dict(config or {}) | more
    settings = {field.name: field for field in fields(model.Config)}
    for key in config:
        if key not in settings:
            raise UnknownName(f"setting of {name}", str(key), [each for each in settings if each != "attention_overrides"])
    missing = [key for key, field in settings.items() if field.default is MISSING and key not in config]
    if missing:
        raise BadConfig(f"{name} cannot be built without {' and '.join(missing)}; got {', '.join(config) or 'no settings'}")
    return model(model.Config(**config))


def config_of(model: Model) -> tuple[str, dict[str, Any]]:
    """The name and the settings of a model as plain values: what a run directory stores and `build` takes."""
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(model.config).items()}
    return model.facts.name, plain
