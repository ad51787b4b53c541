"""The families of transformers that can be read and written: one file each, and this list."""

from __future__ import annotations

from ..family import Family
from .albert import AlbertFamily as AlbertFamily
from .bart import BartFamily as BartFamily
from .bert import BertFamily as BertFamily
from .big_bird import BigBirdFamily as BigBirdFamily
from .clip import CLIPFamily as CLIPFamily
from .distilbert import DistilBertFamily as DistilBertFamily
from .electra import ElectraFamily as ElectraFamily
from .fnet import FNetFamily as FNetFamily
from .gemma import Gemma1Family as Gemma1Family
from .gemma import GemmaFamily as GemmaFamily
from .gpt import GPTFamily as GPTFamily
from .gpt2 import GPT2Family as GPT2Family
from .gpt_neox import GPTNeoXFamily as GPTNeoXFamily
from .gpt_oss import GptOssFamily as GptOssFamily
from .granite import GraniteFamily as GraniteFamily
from .llama import LlamaFamily as LlamaFamily
from .llama import Phi3Family as Phi3Family
from .longformer import LongformerFamily as LongformerFamily
from .marian import MarianFamily as MarianFamily
from .mbart import MBartFamily as MBartFamily
from .mixtral import MixtralFamily as MixtralFamily
from .mixtral import Qwen3MoeFamily as Qwen3MoeFamily
from .modernbert import ModernBertFamily as ModernBertFamily
from .mpnet import MPNetFamily as MPNetFamily
from .mt5 import MT5Family as MT5Family
from .nystromformer import NystromformerFamily as NystromformerFamily
from .olmo2 import Olmo2Family as Olmo2Family
from .opt import OPTFamily as OPTFamily
from .reformer import ReformerFamily as ReformerFamily
from .roberta import RobertaFamily as RobertaFamily
from .smollm3 import SmolLM3Family as SmolLM3Family
from .stablelm import StableLMFamily as StableLMFamily
from .starcoder2 import Starcoder2Family as Starcoder2Family
from .t5 import T5Family as T5Family
from .vit import ViTFamily as ViTFamily
from .vivit import ViViTFamily as ViViTFamily
from .xlm_roberta import CamembertFamily as CamembertFamily
from .xlm_roberta import XLMRobertaFamily as XLMRobertaFamily

# families of transformers that are not here and whose names are close to one that is, so that no typing error is suspected
UNSUPPORTED = frozenset(
    [
        "aria",
        "bark",
        "beit",
        "blip",
        "clap",
        "clvp",
        "colmodernvbert",
        "colqwen2",
        "eurobert",
        "gemma3",
        "gemma3n",
        "gemma3n_text",
        "gemma4",
        "gemma4_text",
        "gpt_neo",
        "gptj",
        "granite_swa",
        "granitemoe",
        "hubert",
        "ibert",
        "informer",
        "levit",
        "llama4",
        "llava",
        "ministral",
        "ministral3",
        "mistral3",
        "mistral4",
        "mllama",
        "modernvbert",
        "molmo2",
        "mpt",
        "olmo",
        "olmo3",
        "olmoe",
        "oneformer",
        "phi",
        "pixtral",
        "plbart",
        "qwen2_moe",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_omni_moe",
        "qwen3_vl",
        "qwen3_vl_moe",
        "rembert",
        "roc_bert",
        "roformer",
        "segformer",
        "smolvlm",
        "t5gemma",
        "t5gemma2",
        "t5gemma2_text",
        "umt5",
        "vilt",
        "vits",
        "xclip",
        "xlm-roberta-xl",
    ]
)

FAMILIES: tuple[Family, ...] = tuple(kind() for kind in (
    BertFamily, RobertaFamily, XLMRobertaFamily, CamembertFamily, DistilBertFamily, ElectraFamily, AlbertFamily, MPNetFamily, ModernBertFamily, GPTFamily, GPT2Family, OPTFamily, GPTNeoXFamily, Starcoder2Family, LlamaFamily, Phi3Family, SmolLM3Family, StableLMFamily, GraniteFamily, Olmo2Family, MixtralFamily, Qwen3MoeFamily, GptOssFamily, GemmaFamily, Gemma1Family, MarianFamily, BartFamily, MBartFamily, T5Family, MT5Family, LongformerFamily, BigBirdFamily, FNetFamily, NystromformerFamily, ReformerFamily, ViTFamily, ViViTFamily, CLIPFamily,
))  # fmt: skip
registered: dict[str, Family] = {}  # from outside the package: `regard.register`


def families() -> dict[str, Family]:
    """Every family by its first `model_type`, then registered ones."""
    return {family.model_types[0]: family for family in FAMILIES} | registered
