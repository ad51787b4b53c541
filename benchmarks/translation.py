"""Training steps of an encoder–decoder, side by side: regard, torch.nn.Transformer in a plain loop, transformers' Marian, Joey NMT.

Run:  python -m benchmarks.translation [--quick]      writes the section `translation` of RESULTS.md;  --quick: one repeat, only printed
3 + 3 layers, width 256, 8 heads, 1,024 hidden, 8,000 tokens, dropout 0.1, label smoothing 0.1, Adam, ~2,048 target tokens per batch, float32.
Figures are target tokens per second without padding, on the same batches.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.compare.measure import time_side_by_side
from regard.data import PairBatch
from regard.models import build
from regard.tasks.translation import summed_loss

from ._common import NOT_INSTALLED, installed, machine, progress, write

N, D, H, HIDDEN, DEPTH, PAD, BOS = 8000, 256, 8, 1024, 3, 0, 1


def batch(mean: int, seed: int = 0) -> PairBatch:
    """About 2,048 target tokens; lengths spread by 15 %, as in unsorted batches."""
    generator = torch.Generator().manual_seed(seed)
    rows = round(2048 / mean)

    def side(first: int) -> tuple[Tensor, Tensor]:
        n = (torch.randn(rows, generator=generator) * mean * 0.15 + mean).round().clamp(4).long()
        ids = torch.randint(4, N, (rows, int(n.max()) + first), generator=generator)
        ids[torch.arange(ids.shape[1]) >= n[:, None] + first] = PAD
        return ids, n

    (source, source_n), (target, target_n) = side(0), side(1)
    target[:, 0] = BOS
    return PairBatch(source, source_n, target, target_n)


class Plain(nn.Module):
    """A plain model on torch.nn.Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(N, D, padding_idx=PAD)
        self.body = nn.Transformer(D, H, DEPTH, DEPTH, HIDDEN, 0.1, batch_first=True, norm_first=True)
        self.register_buffer("position", torch.randn(512, D) * 0.02)

    def loss(self, b: PairBatch) -> Tensor:
        def embed(ids: Tensor) -> Tensor:
            return F.dropout(self.token(ids) * D**0.5 + self.position[: ids.shape[1]], 0.1, self.training)

        given, wanted = b.target_BL[:, :-1], b.target_BL[:, 1:]
        size = given.shape[1]
        out = self.body(
            embed(b.source_BM), embed(given), tgt_mask=torch.ones(size, size, dtype=torch.bool).triu(1), tgt_is_causal=True,
            src_key_padding_mask=b.source_BM == PAD, memory_key_padding_mask=b.source_BM == PAD, tgt_key_padding_mask=given == PAD,
        )  # fmt: skip
        return F.cross_entropy((out @ self.token.weight.T).flatten(0, 1), wanted.flatten(), ignore_index=PAD, label_smoothing=0.1)


def marian() -> tuple[nn.Module, Callable[[PairBatch], Tensor]]:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=N, d_model=D, encoder_layers=DEPTH, decoder_layers=DEPTH, encoder_ffn_dim=HIDDEN, decoder_ffn_dim=HIDDEN,
        encoder_attention_heads=H, decoder_attention_heads=H, dropout=0.1, max_position_embeddings=512, pad_token_id=PAD, eos_token_id=2,
        decoder_start_token_id=BOS, activation_function="relu", scale_embedding=True, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    model = MarianMTModel(config)

    def loss(b: PairBatch) -> Tensor:
        mask = (b.source_BM != PAD).long()
        logits = model(input_ids=b.source_BM, attention_mask=mask, decoder_input_ids=b.target_BL[:, :-1]).logits
        return F.cross_entropy(logits.flatten(0, 1), b.target_BL[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1)

    return model, loss


class Joey(nn.Module):
    """Joey NMT's encoder, decoder and loss, put together as its `build_model` does with pre-norm and tied embeddings."""

    def __init__(self) -> None:
        from joeynmt.decoders import TransformerDecoder
        from joeynmt.embeddings import Embeddings
        from joeynmt.encoders import TransformerEncoder
        from joeynmt.loss import XentLoss

        super().__init__()
        sizes = {"hidden_size": D, "ff_size": HIDDEN, "num_layers": DEPTH, "num_heads": H, "dropout": 0.1, "emb_dropout": 0.1}
        self.token = Embeddings(embedding_dim=D, scale=True, vocab_size=N, padding_idx=PAD)
        self.encoder = TransformerEncoder(**sizes, layer_norm="pre", activation="relu")
        self.decoder = TransformerDecoder(**sizes, vocab_size=N, layer_norm="pre", activation="relu")
        self.decoder.output_layer.weight = self.token.lut.weight
        self.xent = XentLoss(pad_index=PAD, smoothing=0.1)

    def loss(self, b: PairBatch) -> Tensor:
        given, wanted = b.target_BL[:, :-1], b.target_BL[:, 1:]
        seen = (b.source_BM != PAD)[:, None]
        memory, _ = self.encoder(self.token(b.source_BM), b.source_n_B, seen)
        out = self.decoder(
            trg_embed=self.token(given), encoder_output=memory, encoder_hidden=None, src_mask=seen, unroll_steps=given.shape[1],
            hidden=None, trg_mask=(given != PAD)[:, None],
        )  # fmt: skip
        total: Tensor = self.xent(F.log_softmax(out[0], -1), trg=wanted)
        return total / b.target_n_B.sum()


def trained(model: nn.Module, loss: Callable[[], Tensor], fused: bool) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=fused)
    model.train()

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


PEERS = {"torch.nn.Transformer": "torch", "transformers Marian": "transformers", "Joey NMT": "joeynmt"}  # program → package


def peer(name: str) -> tuple[nn.Module, Callable[[PairBatch], Tensor]]:
    """A model and its loss."""
    if name == "transformers Marian":
        return marian()
    model = Joey() if name == "Joey NMT" else Plain()
    return model, model.loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repeat, only printed")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    rows = []
    for mean in (14,) if quick else (14, 30):
        progress(f"translation, mean length {mean}")
        b = batch(mean)
        count = int(b.target_n_B.sum())
        ours = build(
            "transformer",
            {"source_vocab_size": N, "target_vocab_size": N, "width": D, "heads": H, "depth": (DEPTH, DEPTH), "hidden": HIDDEN},
        )
        candidates = {"regard": trained(ours, lambda b=b, m=ours, n=count: summed_loss(m, b, 0.1)[0] / n, True)}
        for name, package in PEERS.items():
            if installed(package):
                model, loss = peer(name)
                candidates[name] = trained(model, lambda b=b, f=loss: f(b), False)
        t = time_side_by_side(candidates, repeats=1 if quick else 5)
        for name in ("regard", *PEERS):
            if name not in t:
                rows.append(f"| {mean} | {name} | {NOT_INSTALLED} | |")
                continue
            ratio = f"**{t[name].median / t['regard'].median:.2f}×**" if name in PEERS else ""
            rows.append(f"| {mean} | {name} | {count / t[name].median:,.0f} ±{t[name].spread * 50:.0f} % | {ratio} |")
    head = ["## Training an encoder–decoder", "", f"{(__doc__ or '').splitlines()[3]} {machine()}.", ""]
    table = ["| mean length | | target tokens per second | regard is faster |", "|---|---|---|---|"]
    write("translation", [*head, *table, *rows], quick)


if __name__ == "__main__":
    main()
