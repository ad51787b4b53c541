r"""Weights made lighter for decoding, which spends its time fetching them.

| weights | bytes each | error of a product, of its spread (rms) | one row, ms | eight rows, ms |
|---|---|---|---|---|
| `float32` | 4 | 0.0000003 | 38 | 79 |
| `halves` | 2 + 2, and 4 | 0.000001 | 27 | 60 |
| `float16` | 2 | 0.0002 | 13 | 30 |
| `int8` | 1 | 0.01 | 10 | 16 |

Times are of all linear layers in one step of GPT-2 small, one AVX2 thread. `halves` holds each weight as the sum of two float16 numbers, 22 bits: as
many bytes as float32, by faster products (FBGEMM's; x is float32, and so are the sums); beside the float32 ones, which many rows are faster
by. `packed` is float32 laid out for oneDNN's products, for several rows (eight: 54 ms where float32 took 72), beside the plain weights, which one
row is faster by. `bfloat16` is there where the processor has it.

int8: $W \approx \mathrm{diag}(s)\,\hat W$ with $s_n = \max_k |W_{nk}| / 127$, found once; $x \approx l + (h - l)\,\hat x$ with $l = \min_k x_k$,
$h = \max_k x_k$, found for each row at every call, so that rows of a batch cannot change one another. The sums are exact, in whole numbers:

$$y = s \odot \big((h - l)\, \hat W \hat x + l\, \hat W 1\big) + b$$

PyTorch's product takes one range for all rows of x, from its largest and smallest entry; so each row is laid into [0, 1] by its own, and one
more row, with a 0 and a 1, makes the common range the same for all. Processors without VNNI add pairs of products in 16 bits, which
overflow unless x is cut to 7 bits; whether they do is tried once.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal, Self, TypeVar, cast, get_args, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels
from ..attention import State
from ..errors import NotSupported
from ..layers import Block
from ..models import LanguageModel, LanguageModelConfig, Translator

Weights = Literal["float32", "packed", "halves", "float16", "bfloat16", "int8"]
Made = Callable[[Tensor, Tensor | None], nn.Module]
M = TypeVar("M", bound=nn.Module)
MANY = 32  # rows from which float32 is faster than two halves
SEVERAL = 4  # rows from which weights laid out for oneDNN are faster
LOW = 2048.0  # what the lower half is multiplied by, so that float16 holds it in full


class Int8Linear(nn.Module):
    """y = x Wᵀ + b with W in int8. `weight` is what W has become."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None):
        super().__init__()
        weight_NK = weight_NK.detach().float()
        scale_N = weight_NK.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        whole_NK = (weight_NK / scale_N[:, None]).round().to(torch.int8)
        self.out_features, self.in_features = weight_NK.shape
        self.bias = None if bias_N is None else bias_N.detach().float()
        self._sum_N = whole_NK.sum(1, dtype=torch.int32) * scale_N
        self._edge_1K = torch.eye(1, self.in_features)
        packed = self.in_features > 1 and _bits() > 0
        self._packed = _pack(whole_NK, scale_N) if packed else None
        self._plain = None if packed else (whole_NK, scale_N)

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
        rows_RK = torch.cat([(x_RK - low_R1) / span_R1, self._edge_1K])
        y_RN: Tensor = torch.ops.quantized.linear_dynamic(rows_RK, self._packed, _bits() == 7)[:-1]
        base_RN = low_R1 * self._sum_N if self.bias is None else torch.addcmul(self.bias, low_R1, self._sum_N)
        y_RN = torch.addcmul(base_RN, y_RN, span_R1)
        return y_RN.view(*x.shape[:-1], self.out_features)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it never changes, and what PyTorch packed cannot be copied

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class HalfLinear(nn.Module):
    """y = x Wᵀ + b with W in float16, or, with `both`, as the sum of two such halves."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None, both: bool = False):
        super().__init__()
        weight_NK = weight_NK.detach().float()
        self.out_features, self.in_features = weight_NK.shape
        self.bias = None if bias_N is None else bias_N.detach().float()
        self._whole_NK = weight_NK if both else None
        high_NK = weight_NK.half().float()
        self._high = torch.ops.quantized.linear_prepack_fp16(high_NK, self.bias)
        self._low = torch.ops.quantized.linear_prepack_fp16((weight_NK - high_NK) * LOW, None) if both else None

    @property
    def weight(self) -> Tensor:
        return self._high.unpack()[0] if self._whole_NK is None else self._whole_NK

    def forward(self, x: Tensor) -> Tensor:
        x_RK = x.reshape(-1, self.in_features)
        if self._whole_NK is not None and len(x_RK) >= MANY:
            return F.linear(x, self._whole_NK, self.bias)
        y_RN: Tensor = torch.ops.quantized.linear_dynamic_fp16(x_RK, self._high)
        if self._low is not None:
            y_RN.add_(torch.ops.quantized.linear_dynamic_fp16(x_RK, self._low), alpha=1 / LOW)
        return y_RN.view(*x.shape[:-1], self.out_features)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, both={self._low is not None}"


class PackedLinear(nn.Module):
    """y = x Wᵀ + b in float32, with W laid out once as oneDNN's products read it, for several rows."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight_NK.shape
        self.weight, self.bias = weight_NK.detach(), None if bias_N is None else bias_N.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[:-1].numel() < SEVERAL:
            return kernels.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Light(LanguageModel):
    """A language model for answers only, its linear layers and its output made lighter. What else it has it shares with the model it came from."""

    def __init__(self, model: LanguageModel, made: Made):
        super().__init__()
        self.config: LanguageModelConfig = model.config
        self.model = _copied(model, made)
        self.output: Any = made(*model.head())
        self.eval()

    def features(self, ids_BL: Tensor, document_BL: Tensor | None = None, state: State | None = None) -> Tensor:
        return self.model.features(ids_BL, document_BL, state)

    def head(self) -> tuple[Tensor, Tensor | None]:
        return self.output.weight, self.output.bias

    def begin(self, batch: int) -> State:
        return self.model.begin(batch)

    def logits(self, x: Tensor) -> Tensor:
        return self.output(x)  # type: ignore[no-any-return]


def quantised(model: LanguageModel) -> LanguageModel:
    """The model with its linear layers in int8, for answers on a CPU; the given one stays as it is."""
    return lightened(model, "int8")


@overload
def lightened(model: LanguageModel, weights: Weights) -> LanguageModel: ...
@overload
def lightened(model: Translator, weights: Weights) -> Translator: ...
def lightened(model: LanguageModel | Translator, weights: Weights) -> LanguageModel | Translator:
    """The model with its weights held so, where the machine does that right, for answers only; the given one stays as it is."""
    if weights == "float32":
        return model
    if weights == "bfloat16":
        found = kernels.bf16()
        if next(model.parameters()).is_cpu and (not found.usable or found.needs_cap):
            raise NotSupported(f"weights in bfloat16 on this machine: {found.note}; take float16, halves, or int8")
        return copy.deepcopy(model).to(torch.bfloat16)
    if weights not in get_args(Weights):
        raise NotSupported(f"weights as {weights}; known are {', '.join(get_args(Weights))}")
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        raise NotSupported(f"weights as {weights} are made of float32 ones on a CPU, not of {parameter.dtype} on {parameter.device}")
    made: Made = PackedLinear if weights == "packed" else Int8Linear if weights == "int8" else partial(HalfLinear, both=weights == "halves")
    if weights == "packed" and not _has_packed():
        raise NotSupported("weights as packed: this PyTorch has no products for them (oneDNN); take float32")
    if weights in ("halves", "float16"):
        if not _has_halves():
            raise NotSupported(f"weights as {weights}: this PyTorch has no products for them (FBGEMM, on x86); take float32, or int8")
        largest = max(float(parameter.detach().abs().max()) for parameter in model.parameters())
        if not largest < torch.finfo(torch.float16).max:
            raise NotSupported(f"weights as {weights}: the largest is {largest:.3g}, and float16 ends at 65504; take float32")
    return Light(model, made) if isinstance(model, LanguageModel) else _light_translator(model, made)


def _copied(model: M, made: Made) -> M:
    """A copy with other linear layers. What else it has it shares with the model."""
    linear = {id(part): made(part.weight, part.bias) for part in model.modules() if type(part) is nn.Linear}
    kept = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, {**linear, **kept}).eval()


def _light_translator(model: Translator, made: Made) -> Translator:
    light = _copied(model, made)
    vars(light)["logits"] = made(*model.head())  # every step ends with it, in place of the method
    for part, new in zip(list(model.modules()), list(light.modules()), strict=True):
        if isinstance(part, Block) and isinstance(new, Block) and part.cross is not None and new.cross is not None:
            # the memory is projected once and queries at every step: they need layers of their own
            qkv, (q_rows, k_rows, _) = part.cross.qkv, part.cross.sizes
            if qkv is not None:
                w, b, at = qkv.weight, qkv.bias, q_rows if k_rows else 0
                new.cross.qkv = None
                new.cross.q = made(w[:q_rows], None if b is None else b[:q_rows])  # type: ignore[assignment]
                new.cross.kv = made(w[at:], None if b is None else b[at:])  # type: ignore[assignment]
    return light


@cache
def _has_halves() -> bool:
    try:
        layer = HalfLinear(torch.full((16, 64), 1 + 2**-12), None, both=True)
        return bool(torch.allclose(layer(torch.ones(2, 64)), torch.full((2, 16), 64 + 64 * 2**-12), rtol=1e-6))
    except (RuntimeError, AttributeError):
        return False


@cache
def _has_packed() -> bool:
    try:
        layer = PackedLinear(torch.full((16, 64), 1.5), torch.ones(16))
        return bool(layer(torch.ones(2, 64)).equal(torch.full((2, 16), 97.0)))
    except (RuntimeError, AttributeError):
        return False


def _pack(whole_NK: Tensor, scale_N: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the type is to be replaced one day; the product it is made for has no other way in yet
        zeros_N = torch.zeros(len(scale_N), dtype=torch.long)
        quantised = torch._make_per_channel_quantized_tensor(whole_NK, scale_N.double(), zeros_N, 0)
    return torch.ops.quantized.linear_prepack(quantised, None)


@cache
def _bits() -> int:
    """Bits of x that products keep here: 8, or 7 where 8 overflow; 0 if there are no such products."""
    x_RK, y_RN = torch.eye(2, 64), torch.ones(2, 16)
    x_RK[1], y_RN[1] = 1, 64.0  # pairs of the largest products
    try:
        packed = _pack(torch.full((16, 64), 127, dtype=torch.int8), torch.full((16,), 1 / 127))
        for bits in (8, 7):
            if torch.allclose(torch.ops.quantized.linear_dynamic(x_RK, packed, bits == 7), y_RN, rtol=0.02):
                return bits
    except (RuntimeError, AttributeError):  # built without them, or they are gone
        pass
    return 0
