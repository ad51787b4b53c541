"""Actions of the explorer page on a model: capture a text or a file, ablate heads, switch the mechanism, take an earlier checkpoint, write on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from ..attention import MECHANISMS, Attention
from ..data import Tokenizer
from ..decode import Engine, EngineOptions, GenerationOptions, PromptEncoder, Request
from ..decode.quantization import QuantizedLanguageModel
from ..errors import NotSupported, RegardError, UnknownName
from ..look import Maps, capture, keep_inputs
from ..look.explorer import Recording, record_answers
from ..look.gradients import next_token_gradients
from ..look.interventions import Ablation, ablate
from ..models import LanguageModel, Model, body_of, device_of, eval_mode
from ..patterns import causal
from ..runs import Run, checkpoints, load_checkpoint
from ..tasks import BeamPrefix, InputField, attention_maps, find_task, predict, task_of, watch
from .responses import token_text
from .whole_text import WholeTextModel

NEXT_TOKENS = 5
Read = Callable[[Model, str], tuple[str, Maps]]
Answer = Callable[[Model, str], str]
Watch = Callable[[Model, str], Iterator[list[BeamPrefix]]]


class Playground:
    """A language model with its tokenizer, or another model with functions that read and answer a text, or a file by its name.

    All methods are called by the thread that owns the model.
    """

    def __init__(
        self,
        model: Model,
        read: Read | None = None,
        answer: Answer | None = None,
        tokenizer: Tokenizer | None = None,
        steps: Mapping[int, Callable[[], Model]] | None = None,
        inputs: Literal["text", "file"] = "text",
        watch: Watch | None = None,
        fields: Sequence[InputField] = (InputField("Text"),),
        own_input: Callable[[], str] | None = None,
    ):
        self.model, self._read_other, self._answer, self.tokenizer = model, read, answer, tokenizer
        self._steps, self.inputs, self._watch, self.fields = dict(steps or {}), inputs, watch, tuple(fields)
        self._own_input = own_input
        self._variant: tuple[tuple[str | None, int | None], Model] = ((None, None), model)  # the last one used
        self._count = 0

    @classmethod
    def of_run(cls, run: Run[Any]) -> Playground:
        """Any run: its task knows how to read an input and how to answer it. A page must not name files of this machine."""
        task = find_task(run.task)
        steps: dict[int, Callable[[], Model]] = {step: partial(load_checkpoint, run, step) for step in checkpoints(run.folder)}
        if isinstance(run.model, LanguageModel):
            return cls(run.model, tokenizer=run.processor.tokenizer, steps=steps, own_input=task_of(run).own_input)
        return cls(
            run.model,
            lambda model, given: attention_maps(run.with_model(model), given, "*", options=task.live_options),
            lambda model, given: predict(run.with_model(model), [given])[0].text,
            steps=steps,
            inputs=task.inputs,
            watch=(lambda model, text: watch(run.with_model(model), text)) if task.searches() else None,
            fields=task_of(run).fields(run.model),
            own_input=task_of(run).own_input,
        )

    @classmethod
    def of_language_model(cls, model: LanguageModel, tokenizer: Tokenizer, own_input: Callable[[], str] | None = None) -> Playground:
        """A language model that is served."""
        return cls(model, tokenizer=tokenizer, own_input=own_input)

    # -- what the page asks for ------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """List what can be chosen."""
        return {
            "model": getattr(getattr(self.model, "facts", None), "name", type(self.model).__name__),
            "mechanisms": self.mechanisms,
            "steps": sorted(self._steps),
            "generates": self.tokenizer is not None,
            "searches": self._watch is not None,
            "inputs": self.inputs,
            "fields": [{"name": one.name, "required": one.required} for one in self.fields],
            "max_length": self.model.max_length if self.inputs == "text" else None,
            "ablates": [name for name, module in body_of(self.model).named_modules() if isinstance(module, Attention)],
        }

    def example(self) -> str:
        """An input of the run's own data; empty if they are gone, or of a kind that cannot be typed. The model is not used."""
        try:
            text = "" if self._own_input is None else self._own_input()
        except (RegardError, OSError):
            return ""
        if self.tokenizer is None or len(ids := self.tokenizer.encode(text)) <= (longest := max(2, self.model.max_length // 2)):
            return text
        return self.tokenizer.decode(ids[:longest])

    def _check_fields(self, given: str) -> None:
        """Every part of an input that has several must be there."""
        parts = given.split("\t", len(self.fields) - 1) if self.inputs == "text" else [given]
        parts += [""] * (len(self.fields) - len(parts))
        if not all(part.strip() for part, field in zip(parts, self.fields, strict=True) if field.required):
            names = [f"a {field.name.lower()}" for field in self.fields if field.required]
            raise NotSupported(f"expected {' and '.join(names)}" + (", with a tab between them" if len(names) > 1 else ""))

    @torch.no_grad()
    def record(self, given: str, ablations: list[Ablation], mechanism: str | None = None, step: int | None = None) -> list[Recording]:
        """Capture a text, or a file by its name; after it the other answers to it, such as the rest of a beam.

        Beside the maps, the loss and the output; under an ablation or another mechanism, also those of the model itself.
        """
        self._check_fields(given)
        model = self._model(mechanism, step)
        maps, facts = self._read(model, given, ablations)
        if not maps.all:
            raise NotSupported("this model has no attention layer, so there is nothing to show")
        changes = [f"{one.layer} head {one.head} {one.how}" for one in ablations] + ([mechanism] if mechanism else [])
        if step is not None:
            facts["step"] = step
        if changes:
            with eval_mode(self.model):
                facts["baseline"] = self._scores(self.model, given) if self.tokenizer else self._output(self.model, given)

        @contextmanager
        def changed() -> Iterator[Model]:
            again = self._model(mechanism, step)
            with _ablate(again, ablations):
                yield again

        for one in (maps, *maps.alternatives):
            one.gradients = None if one.gradients is None else one.gradients.within(changed)
        self._count += 1
        text = given if self.inputs == "text" else ""
        return record_answers(maps, id=str(self._count), title=", ".join(changes), text=text, **facts)

    @torch.no_grad()
    def generate(
        self,
        text: str,
        max_tokens: int,
        temperature: float,
        seed: int,
        ablations: list[Ablation],
        mechanism: str | None,
        step: int | None,
        layer: int,
        head: int,
    ) -> Iterator[dict[str, Any]]:
        """The tokens of the prompt, then each new token with the attention weights of the query that chose it.

        The engine decodes, with a model that reads the whole text at every step. A model that searches yields the prefixes of its beam after
        each step.

        Args:
            text: prompt.
            max_tokens: maximum number of new tokens; the text never slides out of the context.
            temperature: sampling temperature; 0 takes the most likely token.
            seed: seed for sampling; a completion is that of `decode.generate`.
            ablations: heads to switch off.
            mechanism: another mechanism for all layers; None: the model's own.
            step: checkpoint to use; None: the model itself.
            layer: index of the layer whose weights are sent, in order of calls.
            head: head whose weights are sent; beyond the last, the mean of all.
        """
        model, tokenizer = self._model(mechanism, step), self.tokenizer
        if self._watch is not None:
            yield from self._beams(self._watch(model, text), model, ablations)
            return
        if tokenizer is None or not isinstance(model, LanguageModel):
            raise NotSupported("this model does not generate text token by token")
        ids, name_of = self._encode(model, text), partial(token_text, tokenizer)
        yield {"tokens": [name_of(token) for token in ids]}
        encoder, reader = PromptEncoder(tokenizer, model.config.vocab_size), WholeTextModel(model, ablations, layer)
        engine = Engine(
            reader,
            lambda ids: "".join(map(name_of, ids)),  # by token, so that none waits for a character to be complete
            EngineOptions(max_batch=1, max_context_tokens=model.max_length, prefill_chunk=len(ids)),  # the prompt is one pass
            eos_ids=encoder.eos_ids,
            banned_ids=encoder.banned_ids,
        )
        max_tokens = min(max_tokens, model.max_length - len(ids))
        options = GenerationOptions(max_tokens=max_tokens, temperature=temperature, seed=seed, logprobs=0)
        (completion,) = engine.submit(Request(prompt=ids, options=options))
        while engine.busy:
            for token in (token for chunk in engine.step() for token in chunk.logprobs):
                weights_HM = reader.rows_HM.popleft()
                if token.id not in encoder.eos_ids:
                    assert token.log_prob is not None
                    row_M = weights_HM[head] if head < len(weights_HM) else weights_HM.mean(0)
                    row, share = [round(w, 5) for w in row_M.tolist()], round(math.exp(token.log_prob), 5)
                    yield {"token": name_of(token.id), "probability": share, "row": row}
        written = [token for token in completion.ids if token not in encoder.eos_ids]
        yield {"text": tokenizer.decode([*ids, *written][len(encoder.prefix) :])}

    @staticmethod
    def _beams(running: Iterator[list[BeamPrefix]], model: Model, ablations: list[Ablation]) -> Iterator[dict[str, Any]]:
        """An event per step: prefixes with their log-probabilities, and the weights of the queries that chose their last tokens."""
        while True:
            with eval_mode(model), _ablate(model, ablations):  # per step, as others may use the model between two
                prefixes = next(running, None)
            if prefixes is None:
                return
            yield {
                "beam": [
                    {
                        "tokens": one.tokens,
                        "score": round(one.log_prob, 4),
                        "row": [round(w, 5) for w in one.weights_M.tolist()],
                        "ended": one.ended,
                    }
                    for one in prefixes
                ]
            }

    # -- parts -----------------------------------------------------------------------------------------------------------

    def _model(self, mechanism: str | None, step: int | None) -> Model:
        """The model itself, or a copy with another mechanism or earlier parameters; the last copy is kept."""
        key = (mechanism, step)
        if key == (None, None):
            return self.model
        if key != self._variant[0]:
            if mechanism is not None and mechanism not in self.mechanisms:  # a client's text: settings could make it of any size
                raise UnknownName("mechanism for this model", mechanism, self.mechanisms)
            if step is not None and step not in self._steps:
                raise UnknownName("checkpoint", str(step), map(str, self._steps))
            model = self.model if step is None else self._steps[step]()
            self._variant = (key, model if mechanism is None else model.with_attention(mechanism).eval())
        return self._variant[1]

    def _read(self, model: Model, text: str, ablations: list[Ablation]) -> tuple[Maps, dict[str, Any]]:
        """The maps of a text, and what else can be measured: the loss and the next tokens, or the answer."""
        with eval_mode(model), _ablate(model, ablations), keep_inputs():
            if self.tokenizer is not None and isinstance(model, LanguageModel):
                ids = self._encode(model, text)
                with capture(model, tokens=self._strings(ids)) as maps:
                    x_1LD = model.features(ids_1L := torch.tensor([ids], device=device_of(model)))
                if isinstance(model, QuantizedLanguageModel):
                    maps.no_gradients = "The linear layers of a quantized model have no backward pass, so there are no gradients."
                else:
                    maps.gradients = next_token_gradients(model, ids_1L, x_1LD, self._strings, maps.layers)
                return maps, self._scores(model, text, x_1LD)
            assert self._read_other is not None
            output, maps = self._read_other(model, text)
            return maps, {"output": output} if output else self._output(model, text)

    def _strings(self, ids: list[int]) -> list[str]:
        assert self.tokenizer is not None
        return [token_text(self.tokenizer, token) for token in ids]

    def _encode(self, model: LanguageModel, text: str) -> list[int]:
        assert self.tokenizer is not None
        ids = PromptEncoder(self.tokenizer, model.config.vocab_size).encode(text)[0]
        if not 1 <= len(ids) <= model.max_length:
            raise NotSupported(f"the text has {len(ids)} tokens, and this model reads 1 to {model.max_length}; shorten it")
        return ids

    def _scores(self, model: Model, text: str, x_1LD: Tensor | None = None) -> dict[str, Any]:
        """The loss of a text in nats per token, and the most likely next tokens."""
        assert self.tokenizer is not None and isinstance(model, LanguageModel)
        ids = torch.tensor(self._encode(model, text), device=device_of(model))
        x_LD = (model.features(ids[None]) if x_1LD is None else x_1LD)[0]
        total = float(model.cross_entropy(x_LD[:-1], ids[1:])[0]) if len(ids) > 1 else 0.0
        best = model.logits(x_LD[-1:])[0].float().softmax(-1).topk(min(NEXT_TOKENS, len(self.tokenizer)))
        chosen = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return {
            "loss": round(total / (len(ids) - 1), 5) if len(ids) > 1 else None,
            "next": [[token_text(self.tokenizer, token), round(share, 4)] for token, share in chosen],
        }

    def _output(self, model: Model, given: str) -> dict[str, Any]:
        """The text that comes with the maps; if there is none, the answer to a text."""
        try:
            output = self._read_other(model, given)[0] if self._read_other else ""
            return {"output": output or (self._answer(model, given) if self._answer and self.inputs == "text" else "")}
        except NotSupported as reason:
            return {"output": "", "note": str(reason)}

    @cached_property
    def mechanisms(self) -> list[str]:
        """Mechanisms that this model can run with untrained: they have no parameters and no gates of their own."""
        try:
            layers = list(self.model.attentions().values())
        except AttributeError:
            return []
        if not layers:
            return []
        heads, found = layers[0].heads, []
        for mechanism in MECHANISMS:
            try:
                made = mechanism.sized(
                    heads=heads, head_dim=layers[0].sizes[0] // heads, length=min(self.model.max_length, 64)
                )  # some are as large as length²
            except RegardError:
                continue
            trained = made.reads_gates or any(True for _ in made.parameters())
            if not trained and (not self.tokenizer or made.supports(causal)):
                found.append(made.facts.name)
        return sorted(found)


def _ablate(model: Model, ablations: list[Ablation]) -> AbstractContextManager[None]:
    """Layers are named as maps name them: those of a classifier are its body's."""
    return ablate(body_of(model), ablations)
