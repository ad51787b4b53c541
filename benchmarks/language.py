"""Training steps of a language model, side by side: regard's GPT-2, a nanoGPT in plain PyTorch, transformers' GPT-2.

Run:  python -m benchmarks.language [--compiled] [--repeats R] [--quick]      writes the section `language` of RESULTS.md.
6 layers, width 384, 6 heads, 12 sequences of 256 tokens, dropout 0.2, AdamW, float32; a vocabulary of 65 characters, then of 50,257 tokens.
All start from the same parameters, get the same batches, and apply dropout to embeddings, residuals and attention weights. Before anything
is timed, 8 steps of each are compared without dropout: the loss curves are the same. --quick: one repeat, 65 characters, only printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.compare.measure import time_side_by_side
from regard.kernels import smoothed_cross_entropy
from regard.models import GPT2, build
from regard.train import AdamW

from ._common import NOT_INSTALLED, installed, machine, progress, write

DROPOUT = 0.2  # nanoGPT's for this size
DEPTH, D, H, L, ROWS, RATE, STEPS = 6, 384, 6, 256, 12, 3e-4, 8
PEER = "transformers GPT-2"
Loss = Callable[[Tensor, Tensor], Tensor]


class PlainBlock(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.c_attn, self.attn_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.c_fc, self.mlp_proj = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (part.view(B, T, H, C // H).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(C, 2))
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate).transpose(1, 2).contiguous().view(B, T, C)
        x = x + F.dropout(self.attn_proj(y), rate)
        return x + F.dropout(self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)))), rate)


class Plain(nn.Module):
    """nanoGPT's model: fused q, k, v, PyTorch's attention, GELU by erf (faster than by tanh here), tied output, all logits."""

    def __init__(self, vocab_size: int, dropout: float) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(vocab_size, D), nn.Embedding(L, D), nn.Dropout(dropout)
        self.h, self.ln_f = nn.ModuleList(PlainBlock(dropout) for _ in range(DEPTH)), nn.LayerNorm(D)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.reshape(-1))


def regard_loss(model: GPT2) -> Loss:
    def loss(ids: Tensor, target: Tensor) -> Tensor:
        total, _ = smoothed_cross_entropy(model.features(ids).flatten(0, 1), *model.head(), target.flatten())
        return total / target.numel()

    return loss


def plain(model: GPT2, vocab_size: int, dropout: float) -> Plain:
    """The same parameters in nanoGPT's layout."""
    made, own = Plain(vocab_size, dropout), model.state_dict()
    names = {
        "wte.weight": "embedding.token.weight",
        "wpe.weight": "embedding.position.table.weight",
        "ln_f.weight": "norm.weight",
        "ln_f.bias": "norm.bias",
    }
    parts = {
        "ln_1": "around_mixer.before", "ln_2": "around_feedforward.before", "c_attn": "mixer.qkv", "attn_proj": "mixer.out",
        "c_fc": "feedforward.up", "mlp_proj": "feedforward.down",
    }  # fmt: skip
    for i in range(DEPTH):
        names |= {f"h.{i}.{one}.{kind}": f"blocks.{i}.{other}.{kind}" for one, other in parts.items() for kind in ("weight", "bias")}
    made.load_state_dict({one: own[other] for one, other in names.items()})
    return made


def transformers_loss(model: GPT2, dropout: float) -> tuple[nn.Module, Loss]:
    from transformers import GPT2Config, GPT2LMHeadModel

    from regard.interop.families import GPT2Family

    described, tensors = GPT2Family().export(model)
    quiet = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout, "use_cache": False, "attn_implementation": "sdpa"}
    quiet |= {"bos_token_id": None, "eos_token_id": None}
    made = GPT2LMHeadModel(GPT2Config(**{k: v for k, v in described.items() if k not in ("model_type", "architectures")} | quiet))
    made.load_state_dict({name: x.clone() for name, x in tensors.items()}, strict=False)
    made.tie_weights()

    def loss(ids: Tensor, target: Tensor) -> Tensor:
        logits = made(input_ids=ids).logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.reshape(-1))

    return made, loss


def stepper(model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Callable[[], float]:
    model.train()
    turn = iter(range(1 << 30))

    def step() -> float:
        ids = batches[next(turn) % len(batches)]
        value = loss(ids[:, :-1], ids[:, 1:])
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(value.detach())

    return step


def contestants(vocab_size: int, dropout: float, compiled: bool) -> dict[str, Callable[[], float]]:
    torch.manual_seed(0)
    look = [f"softmax(dropout={dropout})" if dropout else "softmax"]
    ours = build(
        "gpt2",
        {"vocab_size": vocab_size, "context_length": L, "width": D, "heads": H, "depth": DEPTH, "dropout": dropout, "attention": look},
    )
    assert isinstance(ours, GPT2)
    nano = plain(ours, vocab_size, dropout)
    frequency = 1 / (torch.arange(vocab_size) + 3.0)  # some tokens are frequent, as in text: so there is something to learn
    batches = list(torch.multinomial(frequency, STEPS * ROWS * (1 + L), replacement=True).view(STEPS, ROWS, 1 + L))
    losses: dict[str, tuple[nn.Module, Loss]] = {
        "regard": (ours, regard_loss(ours)),
        "nanoGPT in plain PyTorch": (nano, nano),
    }
    if installed("transformers"):
        losses[PEER] = transformers_loss(ours, dropout)
    made = {}
    for name, (model, loss) in losses.items():
        run = torch.compile(loss) if compiled else loss
        config = AdamW(betas=(0.9, 0.95), weight_decay=0.1)
        fused = config.build(model) if name == "regard" else _as_published(model, config)
        for group in fused.param_groups:
            group["lr"] = RATE
        made[name] = stepper(model, run, fused, batches)
    return made


def _as_published(model: nn.Module, config: AdamW) -> torch.optim.Optimizer:
    """nanoGPT takes the fused optimiser on GPUs only, and transformers' trainer the plain one; decay as ours."""
    learning = list(model.parameters())
    groups = [
        {"params": [p for p in learning if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in learning if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compiled", action="store_true", help="use torch.compile for all")
    parser.add_argument("--repeats", type=int, default=7, help="timed turns of each program")
    parser.add_argument("--quick", action="store_true", help="one repeat with 65 characters, only printed")
    args = parser.parse_args()
    rows = []
    for vocab_size in (65,) if args.quick else (65, 50_257):
        progress(f"language model, vocabulary of {vocab_size:,}: loss curves")
        curves = {name: [step() for _ in range(STEPS)] for name, step in contestants(vocab_size, 0.0, False).items()}
        apart = max(abs(a - b) for name in curves for a, b in zip(curves[name], curves["regard"], strict=True))
        assert apart < 2e-3, f"loss curves differ by {apart}"
        progress(f"language model, vocabulary of {vocab_size:,}: timing")
        timed = time_side_by_side(contestants(vocab_size, DROPOUT, args.compiled), repeats=1 if args.quick else args.repeats)
        for name, timing in timed.items():
            ratio = "" if name == "regard" else f"**{timing.median / timed['regard'].median:.2f}×**"
            speed = f"{ROWS * L / timing.median:,.0f} ±{timing.spread * 50:.0f} %"
            rows.append(f"| {vocab_size:,} | {name} | {speed} | {ratio} | {curves[name][0]:.4f} → {curves[name][-1]:.4f} |")
        if PEER not in timed:
            rows.append(f"| {vocab_size:,} | {PEER} | {NOT_INSTALLED} | | |")
    mode = "compiled" if args.compiled else "eager"
    head = [f"## Training a language model, {mode}", "", f"{(__doc__ or '').splitlines()[3]} {machine()}.", ""]
    table = ["| vocabulary | | tokens per second | regard is faster | loss over 8 steps |", "|---|---|---|---|---|"]
    write("language compiled" if args.compiled else "language", [*head, *table, *rows], args.quick)


if __name__ == "__main__":
    main()
