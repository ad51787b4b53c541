r"""Gradients with respect to the inputs, to hold beside attention: what an output depended on, to first order.

$$g_{ij} = \frac{\partial \log p(y_i)}{\partial e_j} \qquad \mathrm{norm}_{ij} = \lVert g_{ij} \rVert_2 \qquad
  \mathrm{times\ input}_{ij} = g_{ij} \cdot e_j$$

y_i is an output: the next token of a text, a masked token, a word of a translation or a caption, the label of an image, a pixel. e_j is the
embedding of input j before positions are added: a row of the token table, the projection of a patch, the features of a cell that convolutions
made of an image (Simonyan et al. 2013; Jain & Wallace 2019 compare them with attention).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..errors import NotSupported, UnknownName
from ..kernels import accumulation_dtype
from ..layers.patches import PatchEmbedding
from ..layers.tubelets import TubeletEmbedding
from ..models import LanguageModel, eval_mode
from ..models.pixels import Values
from ..models.show_attend_tell import ConvEncoder

LONGEST = 2048  # inputs: a forward pass with gradients keeps the activations of every layer
EMBEDDINGS = (nn.Embedding, PatchEmbedding, TubeletEmbedding, Values, ConvEncoder)
Provide = Callable[[], AbstractContextManager[Any]]


class GradientRow(NamedTuple):
    """The gradients of one output: a tensor per input sequence."""

    log_probability: float
    norm: tuple[Tensor, ...]  # norm_M
    times_input: tuple[Tensor, ...]  # times_input_M; its sum is what the log-probability would lose, to first order, without the inputs


class InputGradients:
    """∂ log p(y_i) / ∂ e_j of one input, computed when they are asked for: a forward pass, and a backward pass per output."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Tensor],
        features: Callable[[Any], Tensor],
        target_L: Tensor,
        outputs: Sequence[str],
        layers: Mapping[str, int],
        logits: Callable[[Any, Tensor], Tensor] = lambda model, x_D: model.logits(x_D),
    ):
        """`features(model)` is x_LD, a row per output, of a forward pass over `inputs`: what the embeddings are given.

        `target_L` are the ids of the outputs, `outputs` their names. `layers`: the attention layers whose query i computes output i (or
        whose queries share the only output), with the number of the input that is their keys.
        """
        self._provide: Provide = lambda: nullcontext(model)
        self.inputs, self._features, self._logits = tuple(inputs), features, logits
        self.target_L, self.outputs, self.layers = target_L, list(outputs), dict(layers)
        self.positions: dict[str, list[int]] = {}  # of layers whose keys are some of the inputs: which

    @classmethod
    def of_logits(
        cls,
        model: nn.Module,
        inputs: Tensor,
        logits: Callable[[Any], Tensor],
        target_L: Tensor,
        outputs: Sequence[str],
        layers: Iterable[str],
    ) -> Self:
        """Gradients of outputs whose logits_LN `logits(model)` gives, with respect to one input: of the label of an image, say."""
        return cls(model, (inputs,), logits, target_L, outputs, dict.fromkeys(layers, 0), logits=lambda _, x_N: x_N)

    def within(self, provide: Provide) -> Self:
        """Copy of these gradients for a model that `provide()` lends while they are computed: under an ablation, say."""
        other = copy(self)
        other._provide = provide
        return other

    def rows(self, numbers: Sequence[int]) -> list[GradientRow]:
        """The gradients of these outputs."""
        unknown = [n for n in numbers if not 0 <= n < len(self.outputs)]
        if unknown:
            raise UnknownName("output", str(unknown[0]), map(str, range(len(self.outputs))))
        with self._provide() as model, eval_mode(model), torch.inference_mode(False), torch.enable_grad():
            with _embeddings(model, self.inputs) as found:
                x_LD = self._features(model)
            if len(found) < len(self.inputs) or not x_LD.requires_grad:
                raise NotSupported(f"{type(model).__name__}: there is no gradient with respect to its input embeddings")
            leaves = [found[n] for n in range(len(self.inputs))]
            return [self._row(model, x_LD, n, leaves) for n in numbers]

    def log_probability(self, model: Any, x_D: Tensor, n: int) -> Tensor:
        """log p(y_n) of the features x that output n is computed from."""
        logits_N = self._logits(model, x_D)
        return logits_N.to(accumulation_dtype(logits_N.dtype)).log_softmax(-1)[self.target_L[n]]

    def _row(self, model: Any, x_LD: Tensor, n: int, leaves: list[Tensor]) -> GradientRow:
        logp = self.log_probability(model, x_LD[n], n)
        gradients = torch.autograd.grad(logp, leaves, retain_graph=True, materialize_grads=True)
        return GradientRow(
            float(logp.detach()),
            tuple(g_1MD[0].norm(dim=-1).cpu() for g_1MD in gradients),
            tuple((g_1MD[0] * e_1MD.detach()[0]).sum(-1).cpu() for g_1MD, e_1MD in zip(gradients, leaves, strict=True)),
        )


def next_token_gradients(
    model: LanguageModel, ids_1L: Tensor, x_1LD: Tensor, strings: Callable[[list[int]], Sequence[str]], layers: Iterable[str]
) -> InputGradients:
    """Gradients of a language model with the features x of a text: output i is token i + 1, and the last one the most likely next token."""
    best_1 = model.logits(x_1LD[:, -1]).argmax(-1)
    target_L = torch.cat([ids_1L[0, 1:], best_1.to(ids_1L)])
    names = strings(target_L.tolist())
    return InputGradients(model, (ids_1L,), lambda model: model.features(ids_1L)[0], target_L, names, dict.fromkeys(layers, 0))


@contextmanager
def _embeddings(model: nn.Module, inputs: tuple[Tensor, ...]) -> Iterator[dict[int, Tensor]]:
    """Make the embeddings e_1MD of each input leaves of the graph inside the `with`: the first that is given the input, which may have been packed."""
    found: dict[int, Tensor] = {}

    def hook(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
        at = next((n for n, ids in enumerate(inputs) if n not in found and _same(args[0], ids)), None)
        if at is None:
            return None
        e_1MD = _inputs(module, args, out).detach().requires_grad_()
        if e_1MD.shape[1] > LONGEST:
            raise NotSupported(f"gradients are for at most {LONGEST:,} inputs, and this has {e_1MD.shape[1]:,}; shorten it")
        found[at] = e_1MD
        return _output(module, args, out, e_1MD)

    outer = [module for module in model.modules() if isinstance(module, EMBEDDINGS)]
    inner = {part for module in outer for part in module.modules() if part is not module}
    with ExitStack() as undo:
        for module in outer:
            if module not in inner:
                undo.callback(module.register_forward_hook(hook).remove)
        yield found


def _inputs(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
    """e_1MD of a module that was called with `args` and gave `out`."""
    if isinstance(module, Values):
        values_1LE, first, _ = args
        return module.embed(values_1LE, first)
    return out if out.dim() == 3 else out.flatten(0, -2)[None]  # rows of tokens, or sentences that were packed


def _output(module: nn.Module, args: tuple[Any, ...], out: Tensor, e_1MD: Tensor) -> Tensor:
    """Run the module on embeddings e."""
    if isinstance(module, Values):
        return module.positioned(e_1MD, args[2])
    return e_1MD.reshape(out.shape)


def _same(x: Tensor, ids: Tensor) -> bool:
    return x is ids or (x.dtype == ids.dtype and x.numel() == ids.numel() and torch.equal(x.flatten(), ids.flatten()))
