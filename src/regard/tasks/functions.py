"""Functions from some of their values (neural processes): regression with uncertainty, images as functions of pixel positions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..baselines import Kernel
from ..data import Splits
from ..data.functions import Function, as_text, function_of, read_function_source, with_places
from ..data.splits import read_splits
from ..errors import BadConfig, NotSupported
from ..look import Indices, Layers, Maps, capture
from ..look.pictures import png
from ..models import Gaussian, ProcessModel
from ..runs import Run
from ..train import Loss
from .function_baselines import exact, function_baselines
from .function_pictures import Band, draw_bands, draw_pixels
from .function_processor import FunctionBatch, FunctionProcessor, arranged, collate, drawn
from .measuring import answer
from .options import NoOptions
from .options.functions import BandOptions, FunctionsOptions, FunctionsTaskDeclaration
from .task import Prediction, Report, Task

SAMPLES = 16  # of z, whose predictions are a mixture
SHOWN = 10  # places of a prediction that are printed
SHOWN_KNOWN = 10  # points of an input from the data that are known
GROUPS = ((0, 9), (10, 19), (20, 34), (35, 10**9))  # numbers of known points, of the table


class Fitted(NamedTuple):
    """Prediction of one function, in the units of the data: the known points come first."""

    known: int
    mean_TY: npt.NDArray[np.float64]
    std_TY: npt.NDArray[np.float64]
    log_density: float  # mean of the points that are not known
    mse: float  # their mean squared error
    context_mse: float  # that of the known points


class FunctionsTask(FunctionsTaskDeclaration, Task[FunctionsOptions]):
    unit = "functions"
    loss_unit = "points"
    Processor = FunctionProcessor
    model_kind = ProcessModel
    next_commands = 'regard evaluate {out}        regard predict {out} "x y; x y; …"        regard look {out}'

    # -- data ----------------------------------------------------------------------------------------------------------

    def read(self) -> Splits[list[Function]]:
        o = self.options
        if o.context[0] > o.context[1]:
            raise BadConfig(f"--context {o.context[0]} {o.context[1]}: expected the least number of known points, then the most")
        data, valid, test = (o.one_file(name) for name in ("data", "valid", "test"))
        return read_splits(read_function_source, data, valid, test, o.on_error, o.shares, lambda one: one.key, "function", Function.content)

    def make_processor(self, data: Splits[list[Function]], base: FunctionProcessor | None) -> FunctionProcessor:
        found = FunctionProcessor.fit(data.train)
        self._check_widths(base or found, (one for part in data.parts for one in part))
        return base or found

    def parse(self, text: str) -> Function:
        p: FunctionProcessor = self.processor
        found = function_of(text, len(p.x_mean), len(p.y_mean))
        return found if len(found.x) > (found.context or 0) else with_places(found, p.places())

    def input_text(self, example: Function) -> str:
        return as_text(arranged(example, 0, (SHOWN_KNOWN, SHOWN_KNOWN)), min(SHOWN_KNOWN, len(example.x) - 1))

    def encode(self, examples: Sequence[Function], model: Any) -> Sequence[tuple[int, Function]]:
        self._check_widths(self.processor, examples)
        return list(enumerate(examples))

    @staticmethod
    def _check_widths(processor: FunctionProcessor, functions: Any) -> None:
        sizes = len(processor.x_mean), len(processor.y_mean)
        for one in functions:
            if (found := (one.x.shape[1], one.y.shape[1])) != sizes:
                raise NotSupported(
                    f"functions of {found[0]} x and {found[1]} y; the others, or those of the run, have {sizes[0]} and {sizes[1]}"
                )

    def batch(self, item: Sequence[tuple[int, Function]], generator: torch.Generator | None) -> FunctionBatch:
        context, most = self.options.context, self.options.max_points
        functions = [arranged(one, n, context) if generator is None else drawn(one, context, most, generator) for n, one in item]
        return collate(functions, self.processor)

    # -- model ---------------------------------------------------------------------------------------------------------

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        return {"inputs": len(self.processor.x_mean), "outputs": len(self.processor.y_mean)}

    def loss(self, model: ProcessModel, batch: FunctionBatch) -> Loss:
        """Bound on −log p per point, known ones included, in training; else −log p of the points that are not known, with z from those that are."""
        if model.training:
            log_prob_BL, kl_B = model.bound(batch.x_BLX, batch.y_BLY, batch.c_B, batch.n_B)
            return Loss(kl_B.sum() - log_prob_BL.sum(), batch.targets, {"kl": kl_B.detach().sum()})
        known = batch.known
        samples = SAMPLES if model.config.latent else 1
        generator = torch.Generator().manual_seed(0)  # a prediction does not depend on what else is predicted
        found = model(batch.x_BLX[:, :known], batch.y_BLY[:, :known], batch.x_BLX, batch.c_B, samples, generator)
        log_p_BL = found.log_prob(batch.y_BLY.unsqueeze(1)).logsumexp(1) - math.log(samples)
        at_BL = torch.arange(batch.x_BLX.shape[1], device=log_p_BL.device).expand_as(log_p_BL)
        unknown_BL = (at_BL >= batch.c_B[:, None]) & (at_BL < batch.n_B[:, None])
        return Loss(-(log_p_BL * unknown_BL).sum(), max(batch.unknown, 1), outputs=(moments(found), log_p_BL))

    # -- answers -------------------------------------------------------------------------------------------------------

    def answers(self, outputs: tuple[Gaussian, Tensor], batch: FunctionBatch) -> list[Fitted]:
        p: FunctionProcessor = self.processor
        mean_Y, std_Y = np.array(p.y_mean), np.array(p.y_std)
        (mean, std), log_p = outputs
        found = []
        for row, (known, size) in enumerate(zip(batch.c_B.tolist(), batch.n_B.tolist(), strict=True)):
            y, m, s = (z[row, :size].double().cpu().numpy() for z in (batch.y_BLY, mean, std))
            squared = np.square((m - y) * std_Y).mean(1)
            density = log_p[row, known:size].double().cpu().numpy() - np.log(std_Y).sum()
            means = [float(z.mean()) if len(z) else 0.0 for z in (density, squared[known:], squared[:known])]
            found.append(Fitted(known, m * std_Y + mean_Y, s * std_Y, *means))
        return found

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Fitted], examples: Any) -> dict[str, float]:
        """Loss in nats per standardised point; density and errors in the units of the data, every function counting alike."""
        means = {name: float(np.mean([getattr(one, name) for one in answers])) for name in ("log_density", "mse", "context_mse")}
        return {"loss": sums["loss"] / max(sums["count"], 1), **means}

    def baselines(self, train: Sequence[Function], examples: Sequence[Function]) -> dict[str, dict[str, float]]:
        return function_baselines(self.processor, [arranged(one, n, self.options.context) for n, one in enumerate(examples)])

    def report(self, sums: Mapping[str, float], answers: Sequence[Fitted], examples: Sequence[Function], options: NoOptions) -> Report:
        """With a table by the number of known points, beside the Gaussian process that functions were drawn from."""
        rows = list[tuple[str | int | float, ...]]()
        columns = ["known points", "functions", "log_density", "mse", "context_mse"]
        by_kernel = any(one.kernel is not None for one in examples)
        pairs = [(arranged(one, n, self.options.context), found) for n, (one, found) in enumerate(zip(examples, answers, strict=True))]
        for low, high in GROUPS:
            some = [(one, found) for one, found in pairs if low <= found.known <= high]
            if some:
                means = [float(np.mean([getattr(found, name) for _, found in some])) for name in columns[2:]]
                ceiling = [float(np.mean([exact(one)["log_density"] for one, _ in some]))] if by_kernel else []
                rows.append(
                    (f"{low} to {high}" if high < 10**9 else f"{low} and more", len(some), *(round(x, 4) for x in (*means, *ceiling)))
                )
        names = (*columns, *(("exact log_density",) if by_kernel else ()))
        return Report(metrics=self.metrics(sums, answers, examples), columns=names, rows=rows)

    # -- use -----------------------------------------------------------------------------------------------------------

    def prediction(self, example: Function, answer: Fitted, options: BandOptions) -> Prediction:
        """Means and deviations at the places, some of them as text, and a picture of functions of one variable or of a grid."""
        at, mean, std = example.x[answer.known :], answer.mean_TY[answer.known :], answer.std_TY[answer.known :]
        shown: list[int] = np.unique(np.linspace(0, len(at) - 1, min(SHOWN, len(at))).round().astype(int)).tolist() if len(at) else []
        show = ", ".join
        lines = [
            f"{show(f'{x:.4g}' for x in at[n])}: {show(f'{m:.4g} ± {s:.2g}' for m, s in zip(mean[n], std[n], strict=True))}" for n in shown
        ]
        values = {"known": answer.known, "x": at.astype(float).tolist(), "mean": mean.tolist(), "std": std.tolist()}
        return Prediction("\n".join(lines), values, self._pictures(example, answer, options.kernel))

    def _pictures(self, example: Function, answer: Fitted, kernel: str | None) -> dict[str, bytes]:
        p: FunctionProcessor = self.processor
        band = Band.of(example, answer.mean_TY, answer.std_TY, None if kernel is None else Kernel.read(kernel))
        if p.grid and len(example.x) - answer.known == math.prod(p.grid):
            return {".png": png(draw_pixels([band], p))}
        if (len(p.low), len(p.y_mean)) == (1, 1):
            return {".png": png(draw_bands([band]))}
        return {}

    def attention_maps(self, run: Run[ProcessModel], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """Maps from the places (the known ones first) to the known points."""
        example = self.parse(text)
        known = example.context or 0
        if len(example.x) - known > 64 and not self.processor.grid:  # a line of places: fewer of them can be told apart
            some = example._replace(x=example.x[:known], y=example.y[:known])
            example = with_places(some, self.processor.places(25))
        with capture(run.model, layers, heads) as maps:
            (found,) = answer(self, run.model, [example], options)
        names = [", ".join(f"{x:.4g}" for x in row) for row in example.x.tolist()]
        points = [f"{name}: {', '.join(f'{y:.3g}' for y in row)}" for name, row in zip(names, example.y[:known].tolist(), strict=False)]
        where = example.x if example.x.shape[1] == 2 else np.concatenate([example.x, example.y], 1)
        labelled = [m.label(names if m.queries == len(names) else points, points) for m in maps.all]
        shown = self.prediction(example, found, BandOptions()).text
        return shown, Maps(labelled, maps.idle, points=where[:known] if where.shape[1] == 2 else None)


def moments(found: Gaussian) -> Gaussian:
    """Mean and deviation of a mixture of S Gaussians alike, (B, S, T, Y) → (B, T, Y)."""
    mean = found.mean.mean(1)
    return Gaussian(mean, ((found.std.square() + found.mean.square()).mean(1) - mean.square()).clamp(min=0).sqrt())
