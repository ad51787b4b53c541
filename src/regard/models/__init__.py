"""Published models built from the layers, one file each. `NAMES` is the list; a model is imported when it is used.

The base classes that a new model derives from, and what its config and `_build` are written with, are exported here too: `Decoder` of language
models, `Encoder` of BERT's relatives, `ImageEncoder`, `Translator`, `TextModel`, `Reader`, `CopyModel`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import TYPE_CHECKING, Any

from .._lazy import Entries, lazy
from ..errors import BadConfig, UnknownName
from ..names import find

# The list everything else reads, oldest first: a new model is one line here, and its import for type checkers below.
NAMES = {
    "rnn_lm": "rnn_lm:RNNLM",
    "handwriting": "handwriting:Handwriting",
    "rnnsearch": "rnnsearch:RNNsearch",
    "seq2seq": "seq2seq:Seq2Seq",
    "draw": "draw:Draw",
    "luong": "luong:Luong",
    "show_attend_tell": "show_attend_tell:ShowAttendTell",
    "esim": "esim:ESIM",
    "han": "han:HAN",
    "infersent": "infersent:InferSent",
    "pointer_generator": "pointer_generator:PointerGenerator",
    "self_attentive": "self_attentive:SelfAttentive",
    "gat": "gat:GAT",
    "transformer": "transformer:Transformer",
    "bert": "bert:Bert",
    "gpt": "gpt:GPT",
    "image_transformer": "image_transformer:ImageTransformer",
    "pointer_transformer": "pointer_transformer:PointerTransformer",
    "san": "san:SAN",
    "neural_process": "neural_process:NeuralProcess",
    "albert": "albert:Albert",
    "attentive_neural_process": "attentive_neural_process:AttentiveNeuralProcess",
    "bart": "bart:Bart",
    "gpt2": "gpt2:GPT2",
    "set_transformer": "set_transformer:SetTransformer",
    "t5": "t5:T5",
    "big_bird": "big_bird:BigBird",
    "gpt3": "gpt3:GPT3",
    "longformer_encoder": "longformer:Longformer",
    "mpnet": "mpnet:MPNet",
    "reformer": "reformer:Reformer",
    "graph_transformer": "graph_transformer:GraphTransformer",
    "vit": "vit:ViT",
    "clip": "clip:CLIP",
    "dalle": "dalle:DALLE",
    "fnet": "fnet:FNet",
    "mlp_mixer": "mlp_mixer:MLPMixer",
    "nystromformer": "nystromformer:Nystromformer",
    "vivit": "vivit:ViViT",
    "gatv2": "gat:GATv2",
    "gpt_neox": "gpt_neox:GPTNeoX",
    "opt": "opt:OPT",
    "llama": "llama:Llama",
    "mixtral": "mixtral:Mixtral",
    "gemma": "gemma:Gemma",
    "granite": "granite:Granite",
    "modernbert": "modernbert:ModernBert",
    "olmo2": "olmo2:Olmo2",
    "gpt_oss": "gpt_oss:GptOss",
}
ENTRIES: Entries[type[Model]] = Entries(__name__, NAMES)
registered: dict[str, type[Model]] = {}  # classes from outside the package: `regard.register`

if TYPE_CHECKING:
    from .albert import Albert as Albert
    from .albert import AlbertConfig as AlbertConfig
    from .attentive_neural_process import AttentiveNeuralProcess as AttentiveNeuralProcess
    from .attentive_neural_process import AttentiveNeuralProcessConfig as AttentiveNeuralProcessConfig
    from .bart import Bart as Bart
    from .bart import BartConfig as BartConfig
    from .bert import Bert as Bert
    from .bert import BertConfig as BertConfig
    from .big_bird import BigBird as BigBird
    from .big_bird import BigBirdConfig as BigBirdConfig
    from .classifier import Classifier as Classifier
    from .clip import CLIP as CLIP
    from .clip import CLIPConfig as CLIPConfig
    from .copying import CopyConfig as CopyConfig
    from .copying import CopyModel as CopyModel
    from .copying import CopyOutputs as CopyOutputs
    from .copying import coverage_before as coverage_before
    from .copying import coverage_loss as coverage_loss
    from .dalle import DALLE as DALLE
    from .dalle import DALLEConfig as DALLEConfig
    from .draw import Draw as Draw
    from .draw import DrawConfig as DrawConfig
    from .draw import Drawing as Drawing
    from .encoder import Encoder as Encoder
    from .encoder import EncoderConfig as EncoderConfig
    from .encoder import HeadsConfig as HeadsConfig
    from .encoder import TextEncoder as TextEncoder
    from .encoder import TextEncoderConfig as TextEncoderConfig
    from .esim import ESIM as ESIM
    from .esim import ESIMConfig as ESIMConfig
    from .fnet import FNet as FNet
    from .fnet import FNetConfig as FNetConfig
    from .gat import GAT as GAT
    from .gat import GATConfig as GATConfig
    from .gat import GATv2 as GATv2
    from .gat import GATv2Config as GATv2Config
    from .gaussian import Gaussian as Gaussian
    from .gemma import Gemma as Gemma
    from .gemma import GemmaConfig as GemmaConfig
    from .gpt import GPT as GPT
    from .gpt import GPTConfig as GPTConfig
    from .gpt2 import GPT2 as GPT2
    from .gpt2 import GPT2Config as GPT2Config
    from .gpt3 import GPT3 as GPT3
    from .gpt3 import GPT3Config as GPT3Config
    from .gpt_neox import GPTNeoX as GPTNeoX
    from .gpt_neox import GPTNeoXConfig as GPTNeoXConfig
    from .gpt_oss import GptOss as GptOss
    from .gpt_oss import GptOssConfig as GptOssConfig
    from .granite import Granite as Granite
    from .granite import GraniteConfig as GraniteConfig
    from .graph import GraphBatch as GraphBatch
    from .graph import GraphModel as GraphModel
    from .graph import GraphModelConfig as GraphModelConfig
    from .graph_transformer import GraphTransformer as GraphTransformer
    from .graph_transformer import GraphTransformerConfig as GraphTransformerConfig
    from .han import HAN as HAN
    from .han import HANConfig as HANConfig
    from .handwriting import Handwriting as Handwriting
    from .handwriting import HandwritingConfig as HandwritingConfig
    from .headed import Headed as Headed
    from .headed import body_of as body_of
    from .image import ImageEncoder as ImageEncoder
    from .image import ImageEncoderConfig as ImageEncoderConfig
    from .image import PatchEncoder as PatchEncoder
    from .image_transformer import ImageTransformer as ImageTransformer
    from .image_transformer import ImageTransformerConfig as ImageTransformerConfig
    from .infersent import InferSent as InferSent
    from .infersent import InferSentConfig as InferSentConfig
    from .language import Decoder as Decoder
    from .language import DecoderConfig as DecoderConfig
    from .language import LanguageModel as LanguageModel
    from .language import LanguageModelConfig as LanguageModelConfig
    from .language import layer_heads as layer_heads
    from .llama import Llama as Llama
    from .llama import LlamaConfig as LlamaConfig
    from .longformer import Longformer as Longformer
    from .longformer import LongformerConfig as LongformerConfig
    from .luong import Luong as Luong
    from .luong import LuongConfig as LuongConfig
    from .mixtral import Mixtral as Mixtral
    from .mixtral import MixtralConfig as MixtralConfig
    from .mlp_mixer import MLPMixer as MLPMixer
    from .mlp_mixer import MLPMixerConfig as MLPMixerConfig
    from .model import Count as Count
    from .model import Model as Model
    from .model import ModelConfig as ModelConfig
    from .model import ModelFacts as ModelFacts
    from .model import Positive as Positive
    from .model import Probability as Probability
    from .model import Size as Size
    from .model import Sizes as Sizes
    from .model import Step as Step
    from .model import attention_lines as attention_lines
    from .model import build_heads as build_heads
    from .model import device_of as device_of
    from .model import eval_mode as eval_mode
    from .modernbert import ModernBert as ModernBert
    from .modernbert import ModernBertConfig as ModernBertConfig
    from .mpnet import MPNet as MPNet
    from .mpnet import MPNetConfig as MPNetConfig
    from .neural_process import NeuralProcess as NeuralProcess
    from .nystromformer import Nystromformer as Nystromformer
    from .nystromformer import NystromformerConfig as NystromformerConfig
    from .olmo2 import Olmo2 as Olmo2
    from .olmo2 import Olmo2Config as Olmo2Config
    from .opt import OPT as OPT
    from .opt import OPTConfig as OPTConfig
    from .pointer_generator import PointerGenerator as PointerGenerator
    from .pointer_generator import PointerGeneratorConfig as PointerGeneratorConfig
    from .pointer_transformer import PointerTransformer as PointerTransformer
    from .pointer_transformer import PointerTransformerConfig as PointerTransformerConfig
    from .process import ProcessConfig as ProcessConfig
    from .process import ProcessModel as ProcessModel
    from .reader import Reader as Reader
    from .reader import Reading as Reading
    from .reader import answer_positions as answer_positions
    from .recurrent import RecurrentConfig as RecurrentConfig
    from .recurrent import RecurrentEncoder as RecurrentEncoder
    from .recurrent import RecurrentStack as RecurrentStack
    from .recurrent import RecurrentTranslator as RecurrentTranslator
    from .reformer import Reformer as Reformer
    from .reformer import ReformerConfig as ReformerConfig
    from .rnn_lm import RNNLM as RNNLM
    from .rnn_lm import RNNLMConfig as RNNLMConfig
    from .rnnsearch import RNNsearch as RNNsearch
    from .rnnsearch import RNNsearchConfig as RNNsearchConfig
    from .san import SAN as SAN
    from .san import SANConfig as SANConfig
    from .self_attentive import SelfAttentive as SelfAttentive
    from .self_attentive import SelfAttentiveConfig as SelfAttentiveConfig
    from .sentence import SentenceConfig as SentenceConfig
    from .sentence import SentenceEncoder as SentenceEncoder
    from .seq2seq import Seq2Seq as Seq2Seq
    from .seq2seq import Seq2SeqConfig as Seq2SeqConfig
    from .set_transformer import SetTransformer as SetTransformer
    from .set_transformer import SetTransformerConfig as SetTransformerConfig
    from .show_attend_tell import ShowAttendTell as ShowAttendTell
    from .show_attend_tell import ShowAttendTellConfig as ShowAttendTellConfig
    from .span_reader import SpanReader as SpanReader
    from .t5 import T5 as T5
    from .t5 import T5Config as T5Config
    from .text import Axes as Axes
    from .text import DocumentModel as DocumentModel
    from .text import DocumentModelConfig as DocumentModelConfig
    from .text import Pooled as Pooled
    from .text import TextModel as TextModel
    from .text import TextModelConfig as TextModelConfig
    from .transformer import Transformer as Transformer
    from .transformer import TransformerConfig as TransformerConfig
    from .translator import Decoding as Decoding
    from .translator import Translator as Translator
    from .translator import TranslatorConfig as TranslatorConfig
    from .vit import ViT as ViT
    from .vit import ViTConfig as ViTConfig
    from .vivit import ViViT as ViViT
    from .vivit import ViViTConfig as ViViTConfig

    MODELS: tuple[type[Model], ...]  # all of them, imported
    SIZES: Sizes  # published sizes by name
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "MODELS": lambda: tuple(ENTRIES.values()),
            "SIZES": lambda: {name: config for model in ENTRIES.values() for name, config in model.sizes.items()},
        },
    )


def models() -> Mapping[str, type[Model]]:
    """List every model by name, oldest first, then registered ones; classes are imported when they are asked for."""
    return ChainMap(registered, ENTRIES)


def of_size(name: str, **settings: Any) -> Model:
    """The published model called `name`, freshly initialised: `of_size("gpt2-small")`. Settings given here replace the published ones.

    Args:
        name: published size, such as "gpt2-small".
        **settings: settings that replace the published ones.
    """
    from . import SIZES

    if name not in SIZES:
        raise UnknownName("model size", name, SIZES)
    return build(name, settings)


def find_model(name: str) -> type[Model]:
    """The class of the model called `name`, or of the published size called so.

    Args:
        name: name of a model, or of a published size.
    """
    known = models()
    if name in known:
        return known[name]
    return find("model", name, lambda: {**models(), **{size: model for model in models().values() for size in model.sizes}})


def build(name: str, config: Mapping[str, Any] | None = None, /, **more: Any) -> Model:
    """The model called `name` with these settings, freshly initialised; `build(*config_of(model))` has the architecture of `model`.

    `name` may be a published size; settings then replace the published ones: `build("gpt2-small", vocab_size=65, attention="linear")`.

    Args:
        name: name of a model, or of a published size.
        config: settings by name.
        **more: further settings, which replace those of `config`.
    """
    model = find_model(name)
    config = (asdict(model.sizes[name]) if name in model.sizes else {}) | dict(config or {}) | more
    settings = {field.name: field for field in fields(model.Config)}
    for key in config:
        if key not in settings:
            raise UnknownName(f"setting of {name}", str(key), [each for each in settings if each != "attention_overrides"])
    missing = [key for key, field in settings.items() if field.default is MISSING and key not in config]
    if missing:
        raise BadConfig(f"{name} cannot be built without {' and '.join(missing)}; got {', '.join(config) or 'no settings'}")
    from .size import check_size  # it needs PyTorch

    made = model.Config(**config)
    check_size(name, lambda: model(made))
    return model(made)


def config_of(model: Model) -> tuple[str, dict[str, Any]]:
    """The name and the settings of a model as plain values: what a run directory stores and `build` takes.

    Args:
        model: any model.
    """
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(model.config).items()}
    return model.facts.name, plain
