"""Beam search with one model in three programs: regard, transformers' `generate`, CTranslate2 (float32).

Run:  python -m benchmarks.decoding      writes the section `decoding` of RESULTS.md.
A Marian of 3 + 3 layers, width 256, 4 heads, 1,024 hidden, 8,000 words, weights at random and the same for all; 20 tokens in, 20 out, beam 4.
Once more with regard's weights laid out for oneDNN's products, `lightened(model, "packed")`, float32 as well.
Weights at random hardly ever end an answer by themselves, so all run to the limit, where only the end token is left.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.decode import Beam, Power, Tokens, lightened, translate
from regard.layers import Sinusoidal
from regard.models import Translator, build

from ._measure import machine, write

N, D, H, HIDDEN, DEPTH, LENGTH, WIDTH = 8000, 256, 4, 1024, 3, 20, 4
END, PAD = 0, N - 1
BATCHES = (1, 32)
PACKED = "regard, packed weights"
TOKENS = Tokens(first=PAD, end=END, never=(PAD,))


def marian() -> Any:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=N, decoder_vocab_size=N, d_model=D, encoder_layers=DEPTH, decoder_layers=DEPTH, encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN, encoder_attention_heads=H, decoder_attention_heads=H, max_position_embeddings=128, pad_token_id=PAD,
        eos_token_id=END, bos_token_id=None, decoder_start_token_id=PAD, forced_eos_token_id=None, static_position_embeddings=True,
        activation_function="relu", scale_embedding=True, share_encoder_decoder_embeddings=True, init_std=0.06,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    model.generation_config.forced_eos_token_id = None
    return model


@torch.no_grad()
def ours_with_its_weights(theirs: Any) -> Translator:
    ours = build(
        "transformer",
        {
            "source_vocab": N, "target_vocab": N, "width": D, "heads": H, "depth": (DEPTH, DEPTH), "hidden": HIDDEN, "placement": "post",
        },
    )  # fmt: skip
    ours.embedding.position = Sinusoidal(D, layout="halves")
    ours.embedding.token.weight.copy_(theirs.model.shared.weight)

    def look(mine: Any, its: Any) -> None:
        parts = its.q_proj, its.k_proj, its.v_proj
        mine.qkv.weight.copy_(torch.cat([p.weight for p in parts]))
        mine.qkv.bias.copy_(torch.cat([p.bias for p in parts]))
        mine.out.load_state_dict(its.out_proj.state_dict())

    for blocks, layers in ((ours.encoder, theirs.model.encoder.layers), (ours.decoder, theirs.model.decoder.layers)):
        for block, layer in zip(blocks, layers, strict=True):
            look(block.mixer, layer.self_attn)
            block.around_mixer.over.load_state_dict(layer.self_attn_layer_norm.state_dict())
            if block.cross is not None:
                look(block.cross, layer.encoder_attn)
                block.around_cross.over.load_state_dict(layer.encoder_attn_layer_norm.state_dict())
            block.feedforward.up.load_state_dict(layer.fc1.state_dict())
            block.feedforward.down.load_state_dict(layer.fc2.state_dict())
            block.around_feedforward.over.load_state_dict(layer.final_layer_norm.state_dict())
    return ours.eval()


def generate(model: Any, source_BM: Tensor) -> Callable[[], list[list[int]]]:
    from transformers import LogitsProcessor, LogitsProcessorList

    class EndAtItsPrice(LogitsProcessor):  # type: ignore[misc]
        """At the limit only the end is left, with its own log-probability, as in regard's search."""

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            if input_ids.shape[1] < LENGTH + 1:
                return scores
            return torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor([END]), scores[:, [END]])

    def run() -> list[list[int]]:
        with torch.no_grad():
            found = model.generate(
                source_BM, attention_mask=torch.ones_like(source_BM), num_beams=WIDTH, max_new_tokens=LENGTH + 1, length_penalty=1.0,
                early_stopping=False, do_sample=False, bad_words_ids=[[PAD]], logits_processor=LogitsProcessorList([EndAtItsPrice()]),
            )  # fmt: skip
        return [[t for t in row if t not in (PAD, END)] for row in found.tolist()]

    return run


def ctranslate(model: Any, source_BM: Tensor, folder: str) -> Callable[[], list[list[int]]]:
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    spec = MarianMTLoader().get_model_spec(model)
    words = ["</s>", "<unk>", *map(str, range(2, N - 1))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.decoder_start_token, spec.config.add_source_eos = "</s>", False
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(folder)
    translator = ctranslate2.Translator(folder, device="cpu", compute_type="float32", intra_threads=torch.get_num_threads())
    rows = [[str(t) for t in row] for row in source_BM.tolist()]

    def run() -> list[list[int]]:
        found = translator.translate_batch(rows, beam_size=WIDTH, max_decoding_length=LENGTH, max_batch_size=64)
        return [[int(t) if t.isdigit() else 1 for t in one.hypotheses[0]] for one in found]

    return run


def runner(name: str) -> Callable[[int], list[list[int]]]:
    """One of the three programs, with the same weights and sources as the others."""
    torch.manual_seed(0)
    theirs = marian()
    sources = {batch: torch.randint(2, N - 1, (batch, LENGTH)) for batch in BATCHES}
    runs: dict[int, Callable[[], list[list[int]]]]
    if name.startswith("regard"):
        ours, options = ours_with_its_weights(theirs), Beam(width=WIDTH, length=Power(1.0), most=LENGTH + 1)
        ours = lightened(ours, "packed" if name == PACKED else "float32")
        return lambda batch: [answers[0].ids for answers in translate(ours, sources[batch].tolist(), options, tokens=TOKENS)]
    if name == "transformers generate":
        runs = {batch: generate(theirs, source_BM) for batch, source_BM in sources.items()}
    else:
        runs = {batch: ctranslate(theirs, source_BM, tempfile.mkdtemp(prefix="ct2-")) for batch, source_BM in sources.items()}
    return lambda batch: runs[batch]()


def child(name: str) -> None:
    """Answer requests on standard input, a batch size and a number of repeats each: seconds a run, and the answers."""
    run = runner(name)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        batch, repeats = json.loads(line)
        start = time.perf_counter()
        for _ in range(repeats):
            found = run(batch)
        print(json.dumps([(time.perf_counter() - start) / repeats, found]), flush=True)


class Program:
    """A child process. They take turns: of two thread pools in one process each slows the other down, to half its speed here."""

    def __init__(self, name: str):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.decoding", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.read()

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(next(line for line in self.process.stdout if line.startswith(("[", '"ready'))))

    def run(self, batch: int, repeats: int) -> tuple[float, list[list[int]]]:
        assert self.process.stdin is not None
        print(json.dumps([batch, repeats]), file=self.process.stdin, flush=True)
        seconds, found = self.read()
        return seconds, found


def main() -> None:
    if len(sys.argv) > 1:
        child(sys.argv[1])
        return
    bars = {"regard": "", PACKED: "", "transformers generate": "≥ 2.5×", "CTranslate2, float32": "≥ 1×"}
    programs = {name: Program(name) for name in bars}
    rows = []
    for batch in BATCHES:
        repeats = 8 if batch == 1 else 2
        answers = {name: program.run(batch, 2)[1] for name, program in programs.items()}
        seconds: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(7):
            for name, program in programs.items():
                seconds[name].append(program.run(batch, repeats)[0])
        median = {name: statistics.median(all_) for name, all_ in seconds.items()}
        for name, bar in bars.items():
            same = sum(a == b for a, b in zip(answers[name], answers["regard"], strict=True))
            spread = (max(seconds[name]) - min(seconds[name])) / median[name] * 50
            faster = (f"**{median[name] / median['regard']:.2f}×**", f"{median[name] / median[PACKED]:.2f}×") if bar else ("", "")
            rows.append(
                f"| {batch} | {name} | {batch / median[name]:.1f} ±{spread:.0f} % | {' | '.join(faster)} | {bar} | {same} of {batch} |"
            )
    head = [
        "## Beam search",
        "",
        f"{' '.join((__doc__ or '').splitlines()[3:5])} {machine()}. Each program is a process of its own; they take turns.",
        "",
    ]
    table = [
        "| batch | | sentences a second | regard is faster | with packed weights | bar | answers as regard's |",
        "|---|---|---|---|---|---|---|",
    ]
    write("decoding", [*head, *table, *rows])


if __name__ == "__main__":
    main()
