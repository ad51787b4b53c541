"""Beam search with one model in three programs: regard, transformers' `generate`, CTranslate2 (float32).

Run:  python -m benchmarks.decoding      writes the section `decoding` of RESULTS.md.
A Marian of 3 + 3 layers, width 256, 4 heads, 1,024 hidden, 8,000 words, weights at random and the same for all; 20 tokens in, 20 out, beam 4.
Weights at random hardly ever end an answer by themselves, so all run to the limit, where only the end token is left.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.decode import Beam, Power, Tokens, translate
from regard.layers import Sinusoidal
from regard.models import Translator, build

from ._measure import machine, side_by_side, write

N, D, H, HIDDEN, DEPTH, LENGTH, WIDTH = 8000, 256, 4, 1024, 3, 20, 4
END, PAD = 0, N - 1
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


def main() -> None:
    torch.manual_seed(0)
    theirs = marian()
    ours: nn.Module = ours_with_its_weights(theirs)
    options = Beam(width=WIDTH, length=Power(1.0), most=LENGTH + 1)
    rows = []
    for batch in (1, 32):
        source_BM = torch.randint(2, N - 1, (batch, LENGTH))
        sources = source_BM.tolist()
        candidates: dict[str, Callable[[], list[list[int]]]] = {
            "regard": lambda s=sources: [answers[0].ids for answers in translate(ours, s, options, tokens=TOKENS)],
            "transformers generate": generate(theirs, source_BM),
        }
        try:
            candidates["CTranslate2, float32"] = ctranslate(theirs, source_BM, tempfile.mkdtemp(prefix="ct2-"))
        except ImportError:
            print("ctranslate2 is not installed: pip install ctranslate2", file=sys.stderr)
        answers = {name: run() for name, run in candidates.items()}
        t = side_by_side(candidates, repeats=5)
        for name, timing in t.items():
            same = sum(a == b for a, b in zip(answers[name], answers["regard"], strict=True))
            ratio = timing.median / t["regard"].median
            bar = {"transformers generate": "≥ 2.5×", "CTranslate2, float32": "≥ 1×"}.get(name, "")
            said = f"**{ratio:.2f}×** | {bar} | {same} of {batch}" if bar else " | |"
            rows.append(f"| {batch} | {name} | {batch / timing.median:.1f} ±{timing.spread * 50:.0f} % | {said} |")
    head = ["## Beam search", "", f"{(__doc__ or '').splitlines()[3]} {machine()}.", ""]
    table = ["| batch | | sentences a second | regard is faster | bar | same answer |", "|---|---|---|---|---|---|"]
    write("decoding", [*head, *table, *rows])


if __name__ == "__main__":
    main()
