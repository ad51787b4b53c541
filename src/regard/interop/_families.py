"""The families of transformers that can be read and written: one file each, and this list."""

from __future__ import annotations

from ._bart import BART
from ._bert import BERT
from ._big_bird import BIG_BIRD
from ._clip import CLIP
from ._distilbert import DISTILBERT
from ._electra import ELECTRA
from ._family import Family
from ._fnet import FNET
from ._gemma import GEMMA
from ._gpt import GPT
from ._gpt2 import GPT2
from ._gpt_neox import GPT_NEOX
from ._llama import LLAMA, PHI3
from ._longformer import LONGFORMER
from ._marian import MARIAN
from ._modernbert import MODERNBERT
from ._nystromformer import NYSTROMFORMER
from ._opt import OPT
from ._reformer import REFORMER
from ._roberta import ROBERTA
from ._t5 import T5
from ._vit import VIT
from ._vivit import VIVIT

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
