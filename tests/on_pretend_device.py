"""Checks on the pretend device, in a process of their own: `python tests/on_pretend_device.py` reads ["check", arguments …] per line of its input.

It answers each with a line: null, or a traceback. `tests/test_devices.py` asks.
"""

from __future__ import annotations

import copy
import json
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import pretend_device
import regard
from regard import kernels
from regard.attention import StepState
from regard.decode import GenerationOptions, generate, quantize
from regard.errors import BadFile, NotSupported
from regard.layers import Dropout
from regard.look import Maps
from regard.look.interventions import Ablation
from regard.models import find_model
from regard.patterns import causal, full, window
from regard.serve.playground import Playground
from regard.tasks import attention_maps, evaluate, find_task, load_run, predict, score_outputs, train, watch
from regard.tasks.embedding import embed
from regard.tasks.measuring import measure_loss
from regard.testing._subject import B, Subject, reseed
from regard.train import Loss, TrainOptions, ahead, read_metrics
from regard.train.checkpoint import read_parameters
from tasks.examples import write_example

DEVICE = torch.device(pretend_device.NAME, 0)
PLACES = ("cpu", pretend_device.NAME)


def close(found: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """The same structure, and the same numbers to rounding."""
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=rtol, atol=atol, equal_nan=True)
    elif isinstance(expected, float):
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            close(found[name], expected[name], rtol, atol)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other, rtol, atol)
    else:
        assert found == expected


# -- tasks -------------------------------------------------------------------------------------------------------------


def task(name: str, folder: str) -> None:
    """Train, evaluate, predict and look; each is compared with the CPU."""
    kind, here = find_task(name), Path(folder)
    example = write_example(kind, here)
    options = kind.default_train.replace(
        steps=3, epochs=None, seeds=(), schedule="constant", warmup_steps=0, average=2, evaluate_every=2, log_every=1, precision="float32"
    )
    names = [one.name for one in fields(find_model(kind.default_model).Config)]
    settings = {**{name: 0.0 for name in names if "dropout" in name}, **example.settings}  # each device has masks of its own
    with patch.object(Dropout, "forward", lambda self, x: x):  # that of the heads of classifiers
        for place in PLACES:
            train(kind, example.options, options.replace(device=place), here / place, settings=settings, progress=False)
    lines = [[line for line in read_metrics(here / place) if line["event"] != "start"] for place in PLACES]
    close(*([_losses(line) for line in each] for each in reversed(lines)), rtol=1e-2, atol=1e-3)
    _compare_use(here / "cpu", example.input)


def _compare_use(run_folder: Path, given: str) -> None:
    """Evaluate, predict and look on both devices."""
    found = []
    for place in PLACES:
        run = load_run(run_folder, device=place)
        assert {p.device.type for p in run.model.parameters()} == {place}
        torch.manual_seed(1)
        report, answers = evaluate(run), predict(run, [given])
        try:
            text, maps = attention_maps(run, given)
        except NotSupported as refused:
            text, maps = str(refused), Maps([])
        assert all(m.weights_BHLM.device.type == "cpu" for m in maps.all)
        gradients = [] if maps.gradients is None else [[row.log_probability, row.norm, row.times_input] for row in maps.gradients.rows([0])]
        found.append([report.to_json(), [one.values for one in answers], text, [m.weights_BHLM for m in maps.all], gradients])
    close(found[1], found[0])


def _losses(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name in ("event", "step", "loss", "norm")}


# -- mechanisms --------------------------------------------------------------------------------------------------------


def mechanism(name: str) -> None:
    """Forward and backward pass, weights, and step by step, under every pattern; each is compared with the CPU."""
    kind = next(one for one in regard.MECHANISMS if one.facts.name == name)
    for sample in (False, True):
        subject = Subject(kind, sample)
        if sample and not subject.samples:
            return
        torch.manual_seed(0)
        attention, inputs, patterns = subject.build(), subject.tensors(), subject.patterns()
        for pattern in patterns:
            close(*(_pass(attention, inputs, pattern, place) for place in reversed(PLACES)), rtol=1e-6, atol=1e-8)
        if subject.facts.state not in (None, StepState):
            torch.manual_seed(0)
            whole = subject.tensors(12, 12, grad=False)
            close(*(_steps(attention, whole, place) for place in reversed(PLACES)), rtol=1e-6, atol=1e-8)


def _pass(attention: nn.Module, inputs: list[Tensor], pattern: Any, place: str) -> list[Any]:
    here = copy.deepcopy(attention).to(place)
    q, k, v = (x.detach().to(place).requires_grad_() for x in inputs)
    reseed(here)
    out = here(q, k, v, pattern)
    assert out.device.type == place
    (out * torch.linspace(0, 1, out.numel(), dtype=out.dtype, device=place).view(out.shape)).sum().backward()
    reseed(here)
    weights = here.weights(q.detach(), k.detach(), pattern)
    return [out, weights, *(x.grad for x in (q, k, v, *here.parameters()) if x.grad is not None)]


@torch.no_grad()
def _steps(attention: nn.Module, inputs: list[Tensor], place: str) -> list[Any]:
    here: Any = copy.deepcopy(attention).to(place)
    q, k, v = (x.to(place) for x in inputs)
    reseed(here)
    state = here.start(B, causal)
    found = [here(q[:, a:b], k[:, a:b], v[:, a:b], causal, state=state) for a, b in pairwise([0, 1, 2, 8, 9])]
    order = torch.tensor([2, 0], device=place)
    state = state.reorder(order)
    return [*found, here(q[order, 9:], k[order, 9:], v[order, 9:], causal, state=state)]


# -- models ------------------------------------------------------------------------------------------------------------


def model(name: str, task_name: str, folder: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
    """Train two steps on the device; evaluate, predict and look, each compared with the CPU."""
    kind, here = find_task(task_name), Path(folder)
    example = write_example(kind, here)
    fitting = {one.name for one in fields(find_model(name).Config)}
    settings = {key: value for key, value in {**example.settings, **settings}.items() if key in fitting}
    training = kind.default_train.replace(
        steps=2, epochs=None, seeds=(), schedule="constant", warmup_steps=0, average=0, precision="float32", device=DEVICE.type
    )
    train(kind, replace(example.options, **options), training, here / "run", model=name, settings=settings, progress=False)
    _compare_use(here / "run", example.input)


# -- language models ---------------------------------------------------------------------------------------------------


def language(folder: str) -> None:
    """Completions of several prompts at once, sampled and greedy; embeddings; the page of the explorer; saving; quantization is refused."""
    here = Path(folder)
    example = write_example("language", here)
    options = TrainOptions(steps=2, warmup_steps=1, average=0, save_every=1, evaluate_every=1)
    train("language", example.options, options, here / "run", settings=example.settings, progress=False)
    found = []
    for place in PLACES:
        run = regard.load_run(here / "run", device=place)
        lm, tokenizer = run.model, run.processor.tokenizer
        prompts, sampled = (
            ["The number", "odd", ""],
            GenerationOptions(max_tokens=5, temperature=0.8, top_p=0.9, n=2, best_of=3, seed=3, repetition_penalty=1.2, logprobs=2),
        )
        texts = [[one.text for one in each] for each in generate(lm, tokenizer, prompts, sampled)]
        scores = [
            [one.log_prob for one in each] for each in generate(lm, tokenizer, prompts, GenerationOptions(max_tokens=5, temperature=0))
        ]
        ids = lm.generate(torch.tensor([[3, 4, 5]], device=place), max_tokens=4, temperature=0)
        vectors = [torch.from_numpy(y) for _, y in embed(run, ["The number 3", "is odd"])]
        found.append([texts, scores, ids, vectors, _page(run)])
        regard.save(regard.load(here / "run", device=place), here / f"saved-{place}")
    close(found[1], found[0])
    saved = [read_parameters(here / f"saved-{place}" / "model.safetensors") for place in PLACES]
    close(saved[1], saved[0], rtol=0, atol=0)
    try:
        quantize(lm, "int8")
    except NotSupported as refused:
        assert "--device cpu" in str(refused)
    else:
        raise AssertionError("a model on a device was quantized")


def _page(run: Any) -> list[Any]:
    """What the explorer computes: maps of the model and of variants, gradients, generated tokens."""
    page = Playground.of_run(run)
    layer = next(iter(run.model.attentions()))
    first, *_ = page.record("The number 3", [Ablation(f"{layer}.attention", 0, "zero")])
    other, *_ = page.record("The number", [], mechanism="linear", step=1)
    facts = [one.header()["loss"] for one in (first, other)]
    names = ["gradients/0/1", "norms/0/0", "bias/0/0/1", "values/0/0/0/4"]
    pieces = [torch.frombuffer(bytearray(first.piece(name)), dtype=torch.float32) for name in names]
    tokens = [one.get("token", "") for one in page.generate("The", 3, 0.7, 5, [], None, None, 0, 0)]
    return [facts, pieces, tokens]


def translation(folder: str) -> None:
    """Scores of given outputs, several candidates, and the beam as it is searched."""
    here = Path(folder)
    example = write_example("translation", here)
    options = TrainOptions(steps=2, warmup_steps=1, average=0)
    train("translation", example.options, options, here / "run", settings=example.settings, progress=False)
    found = []
    for place in PLACES:
        run = load_run(here / "run", device=place)
        scores = [one.values for one in score_outputs(run, [("two nine", "nine two"), ("one", "one")])]
        beams = [[(one.tokens, one.log_prob, one.weights_M) for one in step] for step in watch(run, "two nine")]
        found.append([scores, beams])
    close(found[1], found[0])


# -- training ----------------------------------------------------------------------------------------------------------


def resume(name: str, folder: str) -> None:
    """Stop and resume: the same parameters, bit for bit, although batches were made ahead of the stop. Dropout is on."""
    kind, here = find_task(name), Path(folder)
    example = write_example(kind, here)
    options = kind.default_train.replace(
        epochs=None, seeds=(), schedule="constant", warmup_steps=0, average=0, save_every=1, device=DEVICE.type, precision="float32"
    )
    for out, stops in (("whole", (7,)), ("parts", (2, 5, 7))):
        for n, steps in enumerate(stops):
            given = {"settings": example.settings} if not n else {"resume": True}
            train(kind, example.options, options.replace(steps=steps), here / out, progress=False, **given)
    one, other = ((here / out / "model.safetensors").read_bytes() for out in ("whole", "parts"))
    assert one == other


def ahead_of_the_step() -> None:
    """Things come in order, made on another thread, two ahead; an error comes where its thing would have come; nothing is made after the end."""
    made: list[tuple[int, str]] = []

    def make(n: int) -> int:
        made.append((n, threading.current_thread().name))
        if n == 3:
            raise ValueError("three")
        return n * n

    things = ahead(make, range(10), DEVICE)
    assert not made and next(things) == 0 and next(things) == 1 and next(things) == 4
    try:
        next(things)
    except ValueError as wrong:
        assert str(wrong) == "three"
    else:
        raise AssertionError("no error")
    assert [n for n, _ in made] == [*range(len(made))] and len(made) <= 5
    assert all(name.startswith("batches") for _, name in made)
    assert list(ahead(lambda n: n, [0, None, 2], DEVICE)) == [0, None, 2]
    first = next(rest := ahead(make, range(4, 100), DEVICE))
    rest.close()
    assert first == 16 and max(n for n, _ in made) <= 6


def a_failing_batch(folder: str) -> None:
    """A training stops with the error of its batch, at its step."""
    here = Path(folder)
    example = write_example("language", here)
    task, batch = find_task("language"), find_task("language").batch
    calls = iter(range(1000))

    def fails(self: Any, item: Any, generator: Any) -> Any:
        if generator is not None and next(calls) == 4:
            raise BadFile("the fifth batch cannot be read")
        return batch(self, item, generator)

    options = TrainOptions(steps=9, warmup_steps=1, average=0, save_every=1, log_every=1, device=DEVICE.type)
    with patch.object(task, "batch", fails):
        try:
            train(task, example.options, options, here / "run", settings=example.settings, progress=False)
        except BadFile as wrong:
            assert "fifth" in str(wrong)
        else:
            raise AssertionError("no error")
    assert [line["step"] for line in read_metrics(here / "run", "train")] == [1, 2, 3, 4]


def dropout() -> None:
    """Masks of a device: the share that is left, the same forwards and backwards, from a generator if there is one."""
    x = torch.ones(64, 64, device=DEVICE, requires_grad=True)
    for generator in (None, torch.Generator().manual_seed(1), torch.Generator(DEVICE).manual_seed(1)):
        y = kernels.dropout(x, 0.25, generator)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert y.device == DEVICE and torch.equal(gradient, y.detach())
        assert 0.2 < float((y == 0).float().mean()) < 0.3
    q, k, v = (torch.randn(2, 40, 2, 8, device=DEVICE, requires_grad=True) for _ in range(3))
    for pattern in (full, causal & window(3)):
        out = kernels.attend(q, k, v, pattern, dropout=0.5)
        out.sum().backward()
        assert bool(out.isfinite().all()) and bool(v.grad.isfinite().all())


def waiting() -> None:
    """Measuring a loss waits for the device a number of times that does not grow with the number of batches."""

    class Line(nn.Linear):
        pass

    class Sums:
        def plan(self, rows: Any, epoch: Any) -> Any:
            return range(rows)

        def batch(self, item: Any, generator: Any) -> Tensor:
            return torch.full((4, 3), float(item))

        def loss(self, model: Any, x: Tensor) -> Loss:
            y = model(x).sum()
            return Loss(y, len(x), {"double": 2 * y.detach()})

        def answers(self, outputs: Any, batch: Any) -> list[Any]:
            return []

        def encode(self, examples: Any, model: Any) -> Any:
            return examples

    line, counts = Line(3, 1).to(DEVICE), []
    for batches in (2, 20):
        pretend_device.waits.clear()
        sums = measure_loss(Sums(), line, batches)
        counts.append(pretend_device.waits.total())
        assert sums["count"] == 4 * batches and sums["double"] == sums["loss"] * 2
    assert counts[0] == counts[1], counts


def pretending() -> None:
    """The device refuses what a GPU refuses."""
    x = torch.ones(2, 3, device=DEVICE)
    cpu, chance = torch.ones(3), torch.Generator()
    for wrong in (
        lambda: x + cpu,
        lambda: torch.cat([x, cpu[None]]),
        lambda: x @ cpu,
        lambda: cpu[torch.zeros(1, dtype=torch.long, device=DEVICE)],
        lambda: torch.rand(3, device=DEVICE, generator=chance),
        lambda: torch.multinomial(x, 1, generator=chance),
        lambda: x.uniform_(generator=chance),
        lambda: nn.utils.rnn.pack_padded_sequence(x[..., None], torch.tensor([3, 2], device=DEVICE), True),
        lambda: nn.Linear(3, 3)(x),
    ):
        try:
            wrong()
        except RuntimeError:
            continue
        raise AssertionError(f"line {wrong.__code__.co_firstlineno} was not refused")
    try:
        x.numpy()
    except TypeError:
        pass
    else:
        raise AssertionError("a NumPy array was made")
    close([x + torch.tensor(1.0), x[:, torch.tensor([0])]], [torch.full((2, 3), 2.0), torch.ones(2, 1)])  # these are allowed


CHECKS = {
    each.__name__: each
    for each in (task, mechanism, model, language, translation, resume, ahead_of_the_step, a_failing_batch, dropout, waiting, pretending)
}


def main(lines: Iterator[str]) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what checks print is no answer
    for line in lines:
        name, *arguments = json.loads(line)
        torch.manual_seed(0)
        try:
            CHECKS[name](*arguments)
            wrong = None
        except Exception:
            wrong = traceback.format_exc()
        print(json.dumps(wrong), file=answers, flush=True)


if __name__ == "__main__":
    main(iter(sys.stdin))
