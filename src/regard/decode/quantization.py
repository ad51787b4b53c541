r"""Quantization of parameters for decoding on a CPU, which spends its time reading them from memory.

| dtype | bytes per parameter | error of a matmul, relative to its spread (rms) | one row, ms | eight rows, ms |
|---|---|---|---|---|
| `float32` | 4 | 0.0000003 | 38 | 79 |
| `float16x2` | 2 + 2, and 4 | 0.000001 | 27 | 60 |
| `float16` | 2 | 0.0002 | 13 | 30 |
| `int8` | 1 | 0.01 | 10 | 16 |

Times are of all linear layers in one decoding step of GPT-2 small, one AVX2 thread. `float16x2` holds each parameter as the sum of two float16
numbers, 22 bits: as many bytes as float32, but by FBGEMM's faster matmul, whose input and sums are float32. It decodes GPT-2 small 1.38 times as
fast as float32 for one prompt and 1.52 times for eight (1.90 and 1.77 times as fast as transformers), with the same tokens. The float32 parameters
are kept beside it, because they are faster for many rows. `float32_packed` is float32 in oneDNN's blocked layout, for several rows (eight: 54 ms
instead of 72), beside the plain parameters, which are faster for one row. `bfloat16` needs a processor that supports it.

int8: $W \approx \mathrm{diag}(s)\,\hat W$ with $s_n = \max_k |W_{nk}| / 127$, computed once; $x \approx l + (h - l)\,\hat x$ with $l = \min_k x_k$,
$h = \max_k x_k$, computed per row at every call, so that rows of a batch cannot affect each other. The sums are exact, in integers:

$$y = s \odot \big((h - l)\, \hat W \hat x + l\, \hat W 1\big) + b$$

PyTorch's int8 matmul takes one range for all rows of x, from the largest and smallest entry; so each row is scaled to [0, 1] by its own range,
and one extra row with a 0 and a 1 makes the common range the same for all. Processors without VNNI add pairs of products in 16 bits, which
overflow unless x is rounded to 7 bits.

The matmuls are private operators of PyTorch (`mkldnn._linear_pointwise`, `torch._make_per_channel_quantized_tensor`, …), which may be
missing or change: `probe_matmuls` tries each once. Without them int8 dequantizes and `float32_packed` is plain float32.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, Self, TypeVar, cast, get_args, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels, machine
from ..attention import State
from ..errors import NotSupported
from ..layers import Block
from ..models import LanguageModel, Model, Translator
from ..models.model import cap_logits
from .options import ParameterDtype

MakeLinear = Callable[[Tensor, Tensor | None], nn.Module]
M = TypeVar("M", bound=nn.Module)
MANY = 32  # rows from which float32 is faster than float16x2
SEVERAL = 4  # rows from which oneDNN's blocked layout is faster
LOW = 2048.0  # scale of the lower float16 number, so that none of its bits are lost
log = logging.getLogger("regard.decode")


class _FixedLinear(nn.Module):
    """y = x Wᵀ + b with parameters that never change, so that copies of a model share them."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight_NK.shape
        self.bias = None if bias_N is None else bias_N.detach().float()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # what PyTorch packed cannot be copied

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Int8Linear(_FixedLinear):
    """A linear layer with W in int8; `weight` is W dequantized. `bits` as in `Matmuls.int8_bits`."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None, bits: int = 8):
        super().__init__(weight_NK, bias_N)
        weight_NK = weight_NK.detach().float()
        scale_N = weight_NK.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        int8_NK = (weight_NK / scale_N[:, None]).round().to(torch.int8)
        self._bits = bits if self.in_features > 1 else 0
        self._sum_N = int8_NK.sum(1, dtype=torch.int32) * scale_N
        self._range_1K = torch.eye(1, self.in_features)
        self._packed = _pack_int8(int8_NK, scale_N) if self._bits else None
        self._plain = None if self._bits else (int8_NK, scale_N)

    @property
    def weight(self) -> Tensor:
        if self._plain is not None:
            return self._plain[0].float() * self._plain[1][:, None]
        return cast(Tensor, self._packed.unpack()[0].dequantize())  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        if self._plain is not None:
            return F.linear(x, self.weight.to(x.dtype), self.bias)
        x_RK = x.reshape(-1, self.in_features)
        low_R1, high_R1 = torch.aminmax(x_RK, dim=1, keepdim=True)
        span_R1 = (high_R1 - low_R1).clamp(min=1e-30)
        rows_RK = torch.cat([(x_RK - low_R1) / span_R1, self._range_1K])
        y_RN: Tensor = torch.ops.quantized.linear_dynamic(rows_RK, self._packed, self._bits == 7)[:-1]
        base_RN = low_R1 * self._sum_N if self.bias is None else torch.addcmul(self.bias, low_R1, self._sum_N)
        y_RN = torch.addcmul(base_RN, y_RN, span_R1)
        return y_RN.view(*x.shape[:-1], self.out_features)


class Float16Linear(_FixedLinear):
    """A linear layer with W in float16, or with `terms=2` as the sum of two float16 numbers."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None, terms: Literal[1, 2] = 1):
        super().__init__(weight_NK, bias_N)
        weight_NK = weight_NK.detach().float()
        self._float32_NK = weight_NK if terms == 2 else None
        high_NK = weight_NK.half().float()
        self._high = torch.ops.quantized.linear_prepack_fp16(high_NK, self.bias)
        self._low = torch.ops.quantized.linear_prepack_fp16((weight_NK - high_NK) * LOW, None) if terms == 2 else None

    @property
    def weight(self) -> Tensor:
        return self._high.unpack()[0] if self._float32_NK is None else self._float32_NK

    def forward(self, x: Tensor) -> Tensor:
        x_RK = x.reshape(-1, self.in_features)
        if self._float32_NK is not None and len(x_RK) >= MANY:
            return F.linear(x, self._float32_NK, self.bias)
        y_RN: Tensor = torch.ops.quantized.linear_dynamic_fp16(x_RK, self._high)
        if self._low is not None:
            y_RN.add_(torch.ops.quantized.linear_dynamic_fp16(x_RK, self._low), alpha=1 / LOW)
        return y_RN.view(*x.shape[:-1], self.out_features)


class PackedLinear(_FixedLinear):
    """A linear layer in float32, with W in oneDNN's blocked layout for several rows."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None):
        super().__init__(weight_NK, bias_N)
        self.weight = weight_NK.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[:-1].numel() < SEVERAL:
            return kernels.fast_linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")


class _QuantizedModel(Model):
    """A model for inference with quantized linear layers and head; it shares all other parameters with the original."""

    def __init__(self, model: Model, make_linear: MakeLinear):
        super().__init__()
        self.config = model.config
        self.model: Any = _copy_with(model, make_linear)
        self.quantized_head: Any = make_linear(*model.head())
        self.eval()

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.quantized_head.weight, self.quantized_head.bias

    @property
    def logit_softcap(self) -> float | None:
        return self.model.logit_softcap

    def logits(self, x: Tensor) -> Tensor:
        return cap_logits(self.quantized_head(x), self.logit_softcap)


class QuantizedLanguageModel(_QuantizedModel, LanguageModel):
    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        return self.model.features(ids_BL, document_BL, state)

    def start(self, batch: int) -> State:
        return self.model.start(batch)


class QuantizedTranslator(_QuantizedModel, Translator):
    def __init__(self, model: Translator, make_linear: MakeLinear):
        super().__init__(model, make_linear)
        _split_cross_projections(model, self.model, make_linear)

    def features(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        return self.model.features(source_BM, source_n_B, target_BL)

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        return self.model.start(source_BM, source_n_B)

    def step_features(self, token_B: Tensor, state: State, want_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        return self.model.step_features(token_B, state, want_weights)


@overload
def quantize(model: LanguageModel, dtype: ParameterDtype = "int8", matmuls: Matmuls | None = None) -> LanguageModel: ...
@overload
def quantize(model: Translator, dtype: ParameterDtype = "int8", matmuls: Matmuls | None = None) -> Translator: ...
def quantize(
    model: LanguageModel | Translator, dtype: ParameterDtype = "int8", matmuls: Matmuls | None = None
) -> LanguageModel | Translator:
    """A copy of the model with parameters of this dtype, for inference; the given model stays as it is.

    Args:
        model: model to copy.
        dtype: number format of the parameters.
        matmuls: matmuls that work on this machine; probed if not given.
    """
    if dtype == "float32":
        return model
    if dtype not in get_args(ParameterDtype):
        raise NotSupported(f"dtype {dtype!r}; expected one of {', '.join(get_args(ParameterDtype))}")
    if dtype == "bfloat16":
        found = machine.bf16()
        if next(model.parameters()).is_cpu and (not found.usable or found.needs_cap):
            raise NotSupported(f"dtype bfloat16 on this machine: {found.note}; use float16, float16x2 or int8")
        return copy.deepcopy(model).to(torch.bfloat16)
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        raise NotSupported(
            f"dtype {dtype} needs a float32 model on the CPU, not {parameter.dtype} on {parameter.device}; move it there (--device cpu), or use dtype float32"
        )
    available = matmuls or probe_matmuls()
    if dtype == "float32_packed" and not available.packed:
        log.warning("float32_packed: this PyTorch has no oneDNN matmul with packed weights; using plain float32")
        return model
    if dtype in ("float16", "float16x2"):
        _check_float16(model, dtype, available)
    makers: dict[str, MakeLinear] = {
        "float32_packed": PackedLinear,
        "float16x2": partial(Float16Linear, terms=2),
        "float16": Float16Linear,
        "int8": partial(Int8Linear, bits=available.int8_bits),
    }
    if isinstance(model, LanguageModel):
        return QuantizedLanguageModel(model, makers[dtype])
    return QuantizedTranslator(model, makers[dtype])


def _check_float16(model: nn.Module, dtype: str, available: Matmuls) -> None:
    if not available.float16:
        raise NotSupported(f"dtype {dtype}: this PyTorch has no float16 matmul (FBGEMM, on x86); use float32 or int8")
    largest = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
    if not largest < torch.finfo(torch.float16).max:
        raise NotSupported(f"dtype {dtype}: the largest parameter is {largest:.3g}, and float16 ends at 65504; use float32")


def _copy_with(model: M, make_linear: MakeLinear) -> M:
    """A copy with other linear layers, which shares all other parameters and buffers with the model."""
    linear = {id(part): make_linear(part.weight, part.bias) for part in model.modules() if type(part) is nn.Linear}
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, {**linear, **shared}).eval()


def _split_cross_projections(model: nn.Module, quantized: nn.Module, make_linear: MakeLinear) -> None:
    """Separate layers for queries and memory in cross-attention: the memory is projected once per source, queries at every step."""
    for part, new in zip(list(model.modules()), list(quantized.modules()), strict=True):
        if isinstance(part, Block) and isinstance(new, Block) and part.cross is not None and new.cross is not None:
            qkv, (q_rows, k_rows, _) = part.cross.qkv, part.cross.sizes
            if qkv is not None:
                w, b, at = qkv.weight, qkv.bias, q_rows if k_rows else 0
                new.cross.qkv = None
                new.cross.q = make_linear(w[:q_rows], None if b is None else b[:q_rows])  # type: ignore[assignment]
                new.cross.kv = make_linear(w[at:], None if b is None else b[at:])  # type: ignore[assignment]


# -- what this build of PyTorch can do -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matmuls:
    """Matmuls of this PyTorch build that work on this processor."""

    int8_bits: int  # bits of x that the int8 matmul keeps: 8, or 7 where 8 overflow; 0 without one
    float16: bool
    packed: bool


@cache
def probe_matmuls() -> Matmuls:
    """Try each matmul on numbers whose result is known."""
    return Matmuls(
        int8_bits=next((bits for bits in (8, 7) if _works(partial(_int8_is_exact, bits))), 0),
        float16=_works(_float16x2_is_exact),
        packed=_works(_packed_is_exact),
    )


def _works(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except (RuntimeError, AttributeError, TypeError):  # built without it, or removed or changed in a later version
        return False


def _int8_is_exact(bits: int) -> bool:
    x_RK, y_RN = torch.eye(2, 64), torch.ones(2, 16)
    x_RK[1], y_RN[1] = 1, 64.0  # pairs of the largest products
    packed = _pack_int8(torch.full((16, 64), 127, dtype=torch.int8), torch.full((16,), 1 / 127))
    return torch.allclose(torch.ops.quantized.linear_dynamic(x_RK, packed, bits == 7), y_RN, rtol=0.02)


def _float16x2_is_exact() -> bool:
    layer = Float16Linear(torch.full((16, 64), 1 + 2**-12), None, terms=2)
    return torch.allclose(layer(torch.ones(2, 64)), torch.full((2, 16), 64 + 64 * 2**-12), rtol=1e-6)


def _packed_is_exact() -> bool:
    layer = PackedLinear(torch.full((16, 64), 1.5), torch.ones(16))
    return bool(layer(torch.ones(SEVERAL, 64)).equal(torch.full((SEVERAL, 16), 97.0)))


def _pack_int8(int8_NK: Tensor, scale_N: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantized tensors are deprecated, but the matmul accepts nothing else yet
        zeros_N = torch.zeros(len(scale_N), dtype=torch.long)
        quantized = torch._make_per_channel_quantized_tensor(int8_NK, scale_N.double(), zeros_N, 0)
    return torch.ops.quantized.linear_prepack(quantized, None)
