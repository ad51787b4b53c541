"""Beam search with one model in three programs: regard, transformers' `generate`, CTranslate2 (float32).

Run:  python -m benchmarks.decoding [--quick]      writes the section `decoding` of RESULTS.md;  --quick: one round, only printed
A Marian of 3 + 3 layers, width 256, 4 heads, 1,024 hidden, 8,000 tokens, the same random parameters for all; 20 tokens in, 20 out, beam 4.
Once more with regard's parameters packed for oneDNN's matmuls, `quantize(model, "float32_packed")`, in float32 as well.
Random parameters hardly ever end a sentence, so all decode up to the limit, where only the end token is left.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.compare.measure import Timing, seconds_of
from regard.decode import Beam, DecoderTokens, Power, quantize, translate
from regard.layers import Sinusoidal
from regard.models import Translator, build

from ._common import NOT_INSTALLED, TIMEOUT, child, installed, machine, progress, write

N, D, H, HIDDEN, DEPTH, LENGTH, WIDTH = 8000, 256, 4, 1024, 3, 20, 4
END, PAD = 0, N - 1
BATCHES = (1, 32)
PACKED = "regard, float32_packed"
TOKENS = DecoderTokens(first=PAD, end=END, banned=(PAD,))


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
def ours_with_its_parameters(theirs: Any) -> Translator:
    ours = build(
        "transformer",
        {
            "source_vocab_size": N, "target_vocab_size": N, "width": D, "heads": H, "depth": (DEPTH, DEPTH), "hidden": HIDDEN, "placement": "post",
        },
    )  # fmt: skip
    ours.embedding.position = Sinusoidal(D, layout="halves")
    ours.embedding.token.weight.copy_(theirs.model.shared.weight)

    def copy_attention(mine: Any, its: Any) -> None:
        parts = its.q_proj, its.k_proj, its.v_proj
        mine.qkv.weight.copy_(torch.cat([p.weight for p in parts]))
        mine.qkv.bias.copy_(torch.cat([p.bias for p in parts]))
        mine.out.load_state_dict(its.out_proj.state_dict())

    for blocks, layers in ((ours.encoder, theirs.model.encoder.layers), (ours.decoder, theirs.model.decoder.layers)):
        for block, layer in zip(blocks, layers, strict=True):
            copy_attention(block.mixer, layer.self_attn)
            block.around_mixer.over.load_state_dict(layer.self_attn_layer_norm.state_dict())
            if block.cross is not None:
                copy_attention(block.cross, layer.encoder_attn)
                block.around_cross.over.load_state_dict(layer.encoder_attn_layer_norm.state_dict())
            block.feedforward.up.load_state_dict(layer.fc1.state_dict())
            block.feedforward.down.load_state_dict(layer.fc2.state_dict())
            block.around_feedforward.over.load_state_dict(layer.final_layer_norm.state_dict())
    return ours.eval()


def generate(model: Any, source_BM: Tensor) -> Callable[[], list[list[int]]]:
    from transformers import LogitsProcessor, LogitsProcessorList

    class ForceEnd(LogitsProcessor):  # type: ignore[misc]
        """At the limit only the end token is left, with its own log-probability, as in regard's search."""

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            if input_ids.shape[1] < LENGTH + 1:
                return scores
            return torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor([END]), scores[:, [END]])

    def run() -> list[list[int]]:
        with torch.no_grad():
            found = model.generate(
                source_BM, attention_mask=torch.ones_like(source_BM), num_beams=WIDTH, max_new_tokens=LENGTH + 1, length_penalty=1.0,
                early_stopping=False, do_sample=False, bad_words_ids=[[PAD]], logits_processor=LogitsProcessorList([ForceEnd()]),
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


@cache
def runner(name: str) -> Callable[[int], list[list[int]]]:
    """One of the programs, with the same parameters and sources as the others: batch size → answers."""
    torch.manual_seed(0)
    theirs = marian()
    sources = {batch: torch.randint(2, N - 1, (batch, LENGTH)) for batch in BATCHES}
    runs: dict[int, Callable[[], list[list[int]]]]
    if name.startswith("regard"):
        ours, options = ours_with_its_parameters(theirs), Beam(size=WIDTH, length_penalty=Power(1.0), max_tokens=LENGTH + 1)
        ours = quantize(ours, "float32_packed" if name == PACKED else "float32")
        return lambda batch: [answers[0].ids for answers in translate(ours, sources[batch].tolist(), options, tokens=TOKENS)]
    if name == "transformers generate":
        runs = {batch: generate(theirs, source_BM) for batch, source_BM in sources.items()}
    else:
        runs = {batch: ctranslate(theirs, source_BM, tempfile.mkdtemp(prefix="ct2-")) for batch, source_BM in sources.items()}
    return lambda batch: runs[batch]()


def decoded(name: str, batch: int) -> list[list[int]]:
    """Called in a child process: of two thread pools in one process each slows the other down, to half its speed here."""
    return runner(name)(batch)


def timed(name: str, batch: int, repeats: int) -> float:
    """Called in the same child process: seconds per batch."""
    return seconds_of(lambda: runner(name)(batch), repeats)


PEERS = {"transformers generate": "transformers", "CTranslate2, float32": "ctranslate2"}  # program → package


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, only printed")
    quick = parser.parse_args().quick
    programs = {name: child() for name in ("regard", PACKED, *PEERS) if name not in PEERS or installed(PEERS[name])}
    rows = []
    for batch in BATCHES[:1] if quick else BATCHES:
        repeats = 1 if quick else 8 if batch == 1 else 2
        answers = {name: program.call("benchmarks.decoding:decoded", TIMEOUT, name=name, batch=batch) for name, program in programs.items()}
        seconds: dict[str, list[float]] = {name: [] for name in programs}
        for n in range(1 if quick else 7):
            progress(f"beam search, batch {batch}, round {n + 1}")
            for name, program in programs.items():
                seconds[name].append(program.call("benchmarks.decoding:timed", TIMEOUT, name=name, batch=batch, repeats=repeats))
        timings = {name: Timing.of(each) for name, each in seconds.items()}
        for name in ("regard", PACKED, *PEERS):
            if name not in timings:
                rows.append(f"| {batch} | {name} | {NOT_INSTALLED} | | | |")
                continue
            same = sum(a == b for a, b in zip(answers[name], answers["regard"], strict=True))
            ratios = [timings[name].median / timings[ours].median for ours in ("regard", PACKED)]
            faster = f"**{ratios[0]:.2f}×** | {ratios[1]:.2f}×" if name in PEERS else " | "
            speed = f"{batch / timings[name].median:.1f} ±{timings[name].spread * 50:.0f} %"
            rows.append(f"| {batch} | {name} | {speed} | {faster} | {same} of {batch} |")
    for program in programs.values():
        program.close()
    head = [
        "## Beam search",
        "",
        f"{' '.join((__doc__ or '').splitlines()[3:5])} {machine()}. Each program is a process of its own; they take turns.",
        "",
    ]
    table = [
        "| batch | | sentences per second | regard is faster | packed | answers equal to regard's |",
        "|---|---|---|---|---|---|",
    ]
    write("decoding", [*head, *table, *rows], quick)


if __name__ == "__main__":
    main()
