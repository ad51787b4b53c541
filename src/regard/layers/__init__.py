"""The layers around attention: heads, feed-forward layers, norms, positions, embeddings and blocks, and their initialisation."""

from .activations import ACTIVATIONS, Gated, geglu, gelu, gelu_quick, gelu_tanh, glu, reglu, relu, silu, swiglu
from .axial import Axial, CausalAxial
from .bidirectional import Bidirectional
from .block import Block, ParallelBlock, Residual, States
from .init import init_gpt, init_truncated, init_xavier
from .latents import CrossBlock, InducedBlock, Latents, Pooling
from .longformer import LongformerHeads
from .lora import LoRALinear, add_lora, merge_lora
from .memory_tokens import MemoryTokens
from .mixers import FourierMixer, GatedMixer, Mixer, TokenMixer
from .multihead import CrossCache, MultiHead
from .normed_heads import DifferentialHeads, GatedHeads
from .packing import Packing
from .patches import PatchEmbedding, patches
from .pooling import AttentionPooling, last_states, max_pool, mean_pool, redundancy
from .positions import ALiBi, Buckets, GridLearned, GridRotary, GridSinusoidal, Learned, Position, RelativeXL, Rotary, Sinusoidal
from .positionwise import Dropout, Embedding, FeedForward, LayerNorm, NoNorm, RMSNorm
from .reversible import Chunked, Reversible, ReversibleBlock
from .segment_recurrence import CompressedPast, Compression, ConvPool, MaxPool, MeanPool, Past, SegmentRecurrence, compression_loss
