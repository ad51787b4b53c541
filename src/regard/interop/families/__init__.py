"""The families of transformers that can be read and written: one file each, and this list."""

from __future__ import annotations

from ..family import Family
from .bart import BART as BART
from .bert import BERT as BERT
from .big_bird import BIG_BIRD as BIG_BIRD
from .clip import CLIP as CLIP
from .distilbert import DISTILBERT as DISTILBERT
from .electra import ELECTRA as ELECTRA
from .fnet import FNET as FNET
from .gemma import GEMMA as GEMMA
from .gpt import GPT as GPT
from .gpt2 import GPT2 as GPT2
from .gpt_neox import GPT_NEOX as GPT_NEOX
from .llama import LLAMA as LLAMA
from .llama import PHI3 as PHI3
from .longformer import LONGFORMER as LONGFORMER
from .marian import MARIAN as MARIAN
from .modernbert import MODERNBERT as MODERNBERT
from .nystromformer import NYSTROMFORMER as NYSTROMFORMER
from .opt import OPT as OPT
from .reformer import REFORMER as REFORMER
from .roberta import ROBERTA as ROBERTA
from .t5 import T5 as T5
from .vit import VIT as VIT
from .vivit import VIVIT as VIVIT

# families of transformers that are not here and whose names are close to one that is, so that no typing error is suspected
UNSUPPORTED = frozenset(
    [
        "albert",
        "aria",
        "bark",
        "beit",
        "blip",
        "clap",
        "clvp",
        "colmodernvbert",
        "colqwen2",
        "eurobert",
        "gemma",
        "gemma3",
        "gemma3n",
        "gemma3n_text",
        "gemma4",
        "gemma4_text",
        "gpt_neo",
        "gptj",
        "hubert",
        "ibert",
        "informer",
        "levit",
        "llama4",
        "llava",
        "mbart",
        "ministral",
        "ministral3",
        "mistral3",
        "mistral4",
        "mixtral",
        "mllama",
        "modernvbert",
        "mt5",
        "oneformer",
        "phi",
        "plbart",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_vl",
        "roc_bert",
        "roformer",
        "segformer",
        "t5gemma",
        "t5gemma2",
        "t5gemma2_text",
        "vilt",
        "vits",
        "xclip",
        "xlm-roberta",
    ]
)

FAMILIES: tuple[Family, ...] = (
    BERT, ROBERTA, DISTILBERT, ELECTRA, MODERNBERT, GPT, GPT2, OPT, GPT_NEOX, LLAMA, PHI3, GEMMA, MARIAN, BART, T5, LONGFORMER, BIG_BIRD, FNET, NYSTROMFORMER, REFORMER, VIT, VIVIT, CLIP,
)  # fmt: skip
registered: dict[str, Family] = {}  # from outside the package: `regard.register`


def families() -> dict[str, Family]:
    """Every family by its first `model_type`, then registered ones."""
    return {family.model_types[0]: family for family in FAMILIES} | registered
