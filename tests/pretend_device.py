"""A pretend accelerator, "pretend:0", that finds on any machine what would fail on a GPU: a tensor that was left on the CPU.

    import tests.pretend_device                    registers the device, for the whole process: use it in a child process
    model.to("pretend")

A tensor of it holds a CPU tensor, computes with that, and refuses what a GPU refuses: to meet CPU tensors (but numbers in elementwise operations,
and indices), random numbers of a CPU generator, NumPy. Random numbers are those of the CPU, so results can be compared with the CPU's to rounding.
It differs from a GPU where PyTorch chooses by device: attention takes the plain kernel, an LSTM one cell per step; so do the sums below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretend"
waits: Counter[str] = Counter()  # operations for which the CPU waits until the device has computed what it is given, by name

aten = torch.ops.aten
WAITING = {"_local_scalar_dense", "nonzero", "equal", "unique_consecutive", "_unique2", "unique_dim", "masked_select", "is_nonzero"}
NUMBERS = {
    "masked_fill",
    "masked_fill_",
    "fill",
    "fill_",
    "where",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_foreach_add_",
    "_foreach_mul_",
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class PretendTensor(Tensor):
    """A tensor whose values are in a tensor on the CPU, `held`; views of it hold views."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendTensor:
        with torch.inference_mode(held.is_inference()):  # a view of a parameter is no inference tensor, wherever it is made
            made: PretendTensor = Tensor._make_wrapper_subclass(
                cls,
                held.size(),
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=torch.device(NAME, 0),
            )
        made.held = held
        return made

    def __init__(self, held: Tensor):
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return compute(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")

    def tolist(self) -> Any:
        waits["tolist"] += 1
        return self.held.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"{self.held!r} on {NAME}"


class PretendGenerator(torch.Generator):
    """`torch.Generator("pretend")`: one of the CPU. PyTorch hands operations another Python object for it, so it is known by its address."""

    known: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        self.known.add(self._cdata)

    def __del__(self) -> None:
        self.known.discard(self._cdata)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(NAME, 0)


RealGenerator = torch.Generator


class _Generators(type):
    def __call__(cls, device: Any = "cpu") -> Any:
        return PretendGenerator() if torch.device(device).type == NAME else RealGenerator(device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, RealGenerator)


class Generator(metaclass=_Generators):
    """In place of `torch.Generator`: makes one of any device, and all are instances of it."""


class Backend(_DummyBackendModule):
    """`torch.pretend`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: Any = None) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def device(self, index: int) -> Any:
        return torch.random.fork_rng(enabled=False)  # a context that changes nothing


# -- operations --------------------------------------------------------------------------------------------------------


def compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Result of an operation of which at least one argument is on the device."""
    name = func._schema.name.partition("::")[2]
    if name in REPLACED:
        return REPLACED[name](*args, **kwargs)
    if name == "copy_":
        return _copy(*args, **kwargs)
    _check(func, name, args, kwargs)
    if name in WAITING or (name in INDEXING and any(_is_mask(index) for index in args[1])):
        waits[name] += 1
    kwargs = dict(kwargs)
    target = kwargs.get("device")
    stays = target is None or torch.device(target).type == NAME
    if name == "_to_copy" and not stays:
        waits[name] += 1
    if target is not None:
        kwargs["device"] = torch.device("cpu")
    held = {id(x.held): x for x in tree_leaves((args, kwargs)) if isinstance(x, PretendTensor)}
    out = func(*tree_map(_held, tuple(args)), **tree_map(_held, kwargs))
    if not stays:
        return out
    out = tree_map(lambda x: (held[id(x)] if id(x) in held else PretendTensor(x)) if isinstance(x, Tensor) else x, out)
    if torch.Tag.inplace_view in func.tags:  # transpose_: the wrapper changes its shape, too
        with no_dispatch():
            func(*args, **kwargs)
    for x in held.values():
        if x.shape != x.held.shape:
            raise NotImplementedError(f"{func} changes the shape of a tensor on the {NAME} device")
    return out


def _held(x: Any) -> Any:
    return x.held if isinstance(x, PretendTensor) else x


def _is_mask(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8)


def _check(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse what a GPU refuses."""
    generator = kwargs.get("generator")
    if generator is not None and generator._cdata not in PretendGenerator.known:
        raise RuntimeError(f"{name}: Expected a '{NAME}' device type for generator but found 'cpu'")
    others = args
    if name in INDEXING:  # of a tensor on the device, the indices may be on the CPU; not the other way round
        if not isinstance(args[0], PretendTensor):
            raise RuntimeError(f"{name}: indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        others = (args[0], *args[2:])
    numbers = torch.Tag.pointwise in func.tags or name in NUMBERS
    strangers = [x for x in tree_leaves((others, kwargs)) if isinstance(x, Tensor) and not isinstance(x, PretendTensor)]
    if any(x.dim() or not numbers for x in strangers):
        shapes = ", ".join(str(tuple(x.shape)) for x in strangers)
        raise RuntimeError(f"{name}: Expected all tensors to be on the same device, but found {NAME}:0 and cpu: {shapes}")


def _copy(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if not isinstance(to, PretendTensor):
        waits["copy_"] += 1
    one, other = _held(to), _held(source)
    if one.data_ptr() != other.data_ptr() or one.numel() != other.numel():  # PyTorch copies an `out=` to itself, not knowing what it holds
        one.copy_(other)
    return to


def _set(to: PretendTensor, source: PretendTensor) -> Tensor:
    if to.shape != source.shape or to.stride() != source.stride():
        raise NotImplementedError(f"set_ to another shape on the {NAME} device")
    to.held = source.held
    return to


def _resize(to: PretendTensor, size: Sequence[int], *, memory_format: Any = None) -> Tensor:
    if tuple(size) != tuple(to.shape):
        raise NotImplementedError(f"resize_ from {tuple(to.shape)} to {tuple(size)} on the {NAME} device")
    return to


def _plain_attention(*_: Any, **__: Any) -> int:
    return 0


# -- cells of recurrent layers, which PyTorch has for GPUs only: one kernel per step -----------------------------------


def _lstm_cell(x_BG: Any, h_BG: Any, c_BW: Any, x_bias_G: Any = None, h_bias_G: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    gates_BG = sum(each.held for each in (x_BG, h_BG, x_bias_G, h_bias_G) if each is not None)
    i, f, g, o = gates_BG.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c_BW.held + i * g
    return PretendTensor(o * c.tanh()), PretendTensor(c), PretendTensor(torch.cat([i, f, g, o], 1))


def _lstm_cell_backward(dh_BW: Any, dc_BW: Any, before_BW: Any, c_BW: Any, gates_BG: Any, bias: bool) -> tuple[Any, ...]:
    i, f, g, o = gates_BG.held.chunk(4, 1)
    bent = c_BW.held.tanh()
    dh = torch.zeros_like(bent) if dh_BW is None else dh_BW.held
    dc = dh * o * (1 - bent * bent) + (0 if dc_BW is None else dc_BW.held)
    d = torch.cat([dc * g * i * (1 - i), dc * before_BW.held * f * (1 - f), dc * i * (1 - g * g), dh * bent * o * (1 - o)], 1)
    return PretendTensor(d), PretendTensor(dc * f), PretendTensor(d.sum(0)) if bias else None


def _gru_cell(x_BG: Any, h_BG: Any, h_BW: Any, x_bias_G: Any = None, h_bias_G: Any = None) -> tuple[Tensor, Tensor]:
    x = x_BG.held if x_bias_G is None else x_BG.held + x_bias_G.held
    own = h_BG.held if h_bias_G is None else h_BG.held + h_bias_G.held
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), own.chunk(3, 1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return PretendTensor(n + z * (h_BW.held - n)), PretendTensor(torch.cat([r, z, n, h_BW.held, hn], 1))


def _gru_cell_backward(dh_BW: Any, kept_BG: Any, bias: bool) -> tuple[Any, ...]:
    r, z, n, before, hn = kept_BG.held.chunk(5, 1)
    dh = dh_BW.held
    dn = dh * (1 - z) * (1 - n * n)
    dz, dr = dh * (before - n) * z * (1 - z), dn * hn * r * (1 - r)
    dx, down = torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1)
    sums = (PretendTensor(dx.sum(0)), PretendTensor(down.sum(0))) if bias else (None, None)
    return PretendTensor(dx), PretendTensor(down), PretendTensor(dh * z), *sums


def _pack(x_LBD: Any, n_B: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    if isinstance(n_B, PretendTensor):
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got 1D {NAME}:0 Long tensor")
    packed, sizes = aten._pack_padded_sequence(x_LBD.held, n_B, batch_first)
    return PretendTensor(packed), sizes  # the sizes stay on the CPU


def _unpack(dx: Any, size: Sequence[int], sizes: Tensor, batch_first: bool) -> Tensor:
    return PretendTensor(aten._pack_padded_sequence_backward(dx.held, size, sizes, batch_first))


REPLACED: dict[str, Any] = {
    "set_": _set,
    "resize_": _resize,
    "_fused_sdp_choice": _plain_attention,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_pack_padded_sequence": _pack,
    "_pack_padded_sequence_backward": _unpack,
}


# -- tensors that are made on the device -------------------------------------------------------------------------------


def _making(func: Any) -> Any:
    """A function of PyTorch that makes tensors from numbers alone, on the device."""

    def make(*args: Any, **kwargs: Any) -> Tensor:
        _check(func, func._schema.name.partition("::")[2], (), kwargs)
        return PretendTensor(func(*args, **{**kwargs, "device": torch.device("cpu"), "pin_memory": False}))

    return make


def _makers() -> list[Any]:
    """Functions of PyTorch that make tensors from numbers alone."""
    found = []
    for whole in torch._C._dispatch_get_all_op_names():
        name, _, overload = whole.removeprefix("aten::").partition(".")
        if not whole.startswith("aten::") or not hasattr(aten, name):
            continue
        func = getattr(getattr(aten, name), overload or "default", None)
        given = func._schema.arguments if func is not None else ()
        made = any(one.name == "device" for one in given) and not any("Tensor" in str(one.type) for one in given)
        if made and not torch._C._dispatch_has_kernel_for_dispatch_key(whole, "CompositeImplicitAutograd"):
            found.append(func)
    return found


def _register() -> torch.library.Library:
    _setup_privateuseone_for_python_backend(NAME, Backend())
    torch.Generator = Generator  # type: ignore[assignment, misc]
    torch.__future__.set_swap_module_params_on_conversion(True)  # `module.to` keeps its parameters the same objects, as for a GPU
    library = torch.library.Library("aten", "IMPL")
    for func in _makers():
        library.impl(func, _making(func), "PrivateUse1")
    library.impl(aten._copy_from.default, lambda source, to, non_blocking=False: _copy(to, source), "PrivateUse1")  # `torch.tensor`
    return library


_library = _register()
