"""The next token of a text, by attention to all tokens before it or from a recurrent state: which gains more from a longer context?

Paper: Radford et al. 2018, "Improving language understanding by generative pre-training", sections 3.1 and 5 (there an LSTM in place of
       the transformer loses 5.6 points of GLUE; by context: Kaplan et al. 2020, arXiv:2001.08361, figure 7).
Run:   regard run gpt2018        Takes: about fifteen minutes on two CPU cores; three seeds of three models.

CPython's documentation in characters, windows of 128, about 165,000 parameters each, equal steps of equal batches. Attention with pre-norm
and rotary embeddings, by Muon: learned positions find their neighbours too slowly for so few steps (after 600 of them GPT-2's blocks were
behind the LSTM and behind the ablation). The LSTM with AdamW, the better of one and two layers and of learning rates from 0.005 to 0.02 on
one seed, so it was tuned more than attention. The ablation attends to the token itself and the one before in each of three layers: four
in all.
"""

from __future__ import annotations

from typing import Any

from ..tasks import LanguageOptions
from ._engine import Claim, Curves, Recipe, RecipeFacts, Value, above, below, measured, validation_curves
from ._engine.variants import TextBaseline, TextVariant, short_training

TEXT = LanguageOptions(tokenizer="char", context_length=128, batch_size=8, shares=(0.1, 0.1), valid_tokens=5000)
SIZE: dict[str, Any] = {"width": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "hidden": 192, "depth": 3, "tied": True, "dropout": 0.0}
LOCAL_SIZE = SIZE | {"attention": ("local(radius=1)",)}
LSTM_SIZE: dict[str, Any] = {"embedding": 64, "width": 160, "depth": 1}
STEPS = 1500
GPT, LSTM, SHORT, NGRAM = "attention", "LSTM", "attention, two tokens", "5-gram"


def gain(name: str) -> Value:
    """Difference by which the loss is lower with 65 to 128 tokens of context than with 9 to 16."""
    return measured(name, "loss by context, 9 to 16") - measured(name, "loss by context, 65 to 128")


recipe = Recipe(
    facts=RecipeFacts(
        "gpt2018", 2018, "Improving language understanding by generative pre-training", "OpenAI 2018", "about fifteen minutes"
    ),
    question="Does attention or recurrence predict the next token better, and how much does each gain from a longer context?",
    variants={
        GPT: TextVariant(options=TEXT, train=short_training(STEPS, 1e-2), model="llama", settings=SIZE),
        LSTM: TextVariant(options=TEXT, train=short_training(STEPS, 2e-2, "adamw"), model="rnn_lm", settings=LSTM_SIZE),
        SHORT: TextVariant(options=TEXT, train=short_training(STEPS, 1e-2), model="llama", settings=LOCAL_SIZE),
        NGRAM: TextBaseline(options=TEXT, name=NGRAM),
    },
    claims=(
        Claim(
            "attention and LSTM have the same number of parameters, within 5 %",
            abs(measured(GPT, "parameters") / measured(LSTM, "parameters") - 1) <= 0.05,
            kind="control",
        ),
        Claim(
            "after equal steps attention has a lower loss than the LSTM",
            measured(GPT, "loss") - measured(LSTM, "loss") <= 0,
        ),
        Claim(
            "from 9–16 tokens of context to 65–128, attention gains more than the LSTM",
            gain(GPT) - gain(LSTM) >= 0,
        ),
        below("attention has a lower loss than 5-grams", (GPT, "loss"), (NGRAM, "loss"), kind="level"),
        above("attention to two tokens per layer has a loss at least 0.1 nats higher", (SHORT, "loss"), (GPT, "loss"), 0.1),
        Claim(
            "and gains at most 0.05 nats from the longer context, which it does not reach",
            gain(SHORT) <= 0.05,
            kind="control",
        ),
    ),
    pictures=(
        validation_curves("loss"),
        Curves(metric="loss by context", file="contexts", x="tokens read", y="loss per token (nats)", title="Loss by context", log="x"),
    ),
)
