"""Help texts and messages about options, from the rows of `_options`."""

from __future__ import annotations

import difflib
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import BadConfig
from ._options import Option

WIDEST = 100  # columns; longer lines are hard to read
LEFT = 26  # columns for names

# Names of settings in nanoGPT, transformers and others.
SETTING_SYNONYMS = {
    "d_model": "width",
    "dim": "width",
    "emb_dim": "width",
    "embed_dim": "width",
    "hidden_size": "width",
    "n_embd": "width",
    "model_dim": "width",
    "n_layer": "depth",
    "n_layers": "depth",
    "num_hidden_layers": "depth",
    "num_layers": "depth",
    "n_head": "heads",
    "n_heads": "heads",
    "nhead": "heads",
    "num_attention_heads": "heads",
    "num_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "dim_feedforward": "hidden",
    "ffn_dim": "hidden",
    "intermediate_size": "hidden",
    "n_inner": "hidden",
    "attention_dropout": "dropout",
    "attn_pdrop": "dropout",
    "hidden_dropout": "dropout",
    "resid_pdrop": "dropout",
    "block_size": "context_length",
    "max_position_embeddings": "context_length",
    "n_positions": "context_length",
}
SETTINGS = ("width", "depth", "heads", "kv_heads", "hidden", "dropout")  # that are also typed as options by mistake

# What other programs call it, and older versions of regard did: options, the first of which that there is applies; a setting; or advice.
SYNONYMS: dict[str, tuple[str, ...]] = {
    **{f"--{name}": (f"--set {name}=…",) for name in SETTINGS},
    **{f"--{name.replace('_', '-')}": (f"--set {setting}=…",) for name, setting in SETTING_SYNONYMS.items() if setting in SETTINGS},
    "--amp": ("--precision bfloat16",),
    "--attn": ("--attention",),
    "--bad": ("--on-error",),
    "--base": ("--init-from",),
    "--batch": ("--batch-size", "--batch-tokens"),
    "--bf16": ("--precision bfloat16",),
    "--block-size": ("--context-length", "--max-length"),
    "--budget": ("--batch-tokens",),
    "--ckpt": ("--init-from",),
    "--context": ("--context-length", "--max-length"),
    "--decay": ("--layer-lr-decay",),
    "--eval-interval": ("--evaluate-every",),
    "--eval-steps": ("--evaluate-every",),
    "--fp16": ("--precision bfloat16",),
    "--frozen": ("--freeze",),
    "--gpu": ("--device cuda",),
    "--gpus": ("--device cuda (--nproc-per-node N for several)",),
    "--grad-accum": ("--accumulate",),
    "--grad-clip": ("--clip",),
    "--gradient-accumulation-steps": ("--accumulate",),
    "--learning-rate": ("--lr",),
    "--log-interval": ("--log-every",),
    "--logging-steps": ("--log-every",),
    "--lr-decay-iters": ("--steps",),
    "--lr-scheduler": ("--schedule",),
    "--lr-scheduler-type": ("--schedule",),
    "--max-epochs": ("--epochs",),
    "--max-grad-norm": ("--clip",),
    "--max-iters": ("--steps",),
    "--max-len": ("--max-length", "--context-length"),
    "--max-new-tokens": ("--max-tokens",),
    "--max-position-embeddings": ("--context-length", "--max-length"),
    "--max-seq-len": ("--max-length", "--context-length"),
    "--max-seq-length": ("--max-length", "--context-length"),
    "--max-steps": ("--steps",),
    "--mixed-precision": ("--precision bfloat16",),
    "--model-name-or-path": ("--init-from",),
    "--n-positions": ("--context-length", "--max-length"),
    "--ngpus": ("--nproc-per-node",),
    "--num-beams": ("--beam",),
    "--num-epochs": ("--epochs",),
    "--num-return-sequences": ("--n",),
    "--num-samples": ("--n",),
    "--num-train-epochs": ("--epochs",),
    "--optim": ("--optimizer",),
    "--output": ("--out",),
    "--output-dir": ("--out",),
    "--out-dir": ("--out",),
    "--per-device-train-batch-size": ("--batch-size", "--batch-tokens"),
    "--resume-from-checkpoint": ("--resume",),
    "--save-interval": ("--save-every",),
    "--save-steps": ("--save-every",),
    "--seq-len": ("--context-length", "--max-length"),
    "--seq-length": ("--context-length", "--max-length"),
    "--tokens": ("--tokenizer",),
    "--train-file": ("--data",),
    "--train-batch-size": ("--batch-size", "--batch-tokens"),
    "--validation-file": ("--valid",),
    "--vocab": ("--vocab-size",),
    "--wandb-log": ("--wandb",),
    "--warmup": ("--warmup-steps",),
    "--warmup-iters": ("--warmup-steps",),
    "--warmup-ratio": ("--warmup-steps",),
}


def width() -> int:
    return max(50, min(WIDEST, shutil.get_terminal_size().columns))


def usage(program: str, options: Sequence[Option]) -> str:
    arguments = [option.name if option.required else f"[{option.name}]" for option in options if option.positional]
    needed = [f"{option.name} {option.value}" for option in options if option.required and not option.positional]
    return " ".join(["usage:", program, *arguments, *needed, "[OPTIONS]"])


def help_text(program: str, description: str, options: Sequence[Option]) -> str:
    """The page that COMMAND --help prints: usage, what it does, examples, options by section."""
    about, examples = split_examples(description)
    lines = textwrap.wrap(usage(program, options), width(), subsequent_indent=" " * 7)
    for paragraph in about:
        lines += ["", *textwrap.wrap(paragraph, width())]
    if examples:
        lines += ["", "Examples:", *(f"  {example}" for example in examples)]
    sections = dict.fromkeys(option.section for option in options if not option.positional)
    if positional := [option for option in options if option.positional]:
        lines += ["", "Arguments:", *_rows(positional)]
    for section in sections or {"": None}:
        rows = [option for option in options if option.section == section and not option.positional]
        if section == "":
            rows.append(Option("-h, --help", "", "Print this page."))
        lines += ["", f"{section or 'Options'}:", *_rows(rows)]
    return "\n".join(lines)


def split_examples(description: str) -> tuple[list[str], list[str]]:
    """Paragraphs of a docstring, and the commands after `As in:`."""
    about, _, examples = description.partition("As in:")
    paragraphs = [" ".join(paragraph.split()) for paragraph in about.strip().split("\n\n")]
    return [paragraph for paragraph in paragraphs if paragraph], [line.strip() for line in examples.splitlines() if line.strip()]


def _rows(options: Iterable[Option]) -> list[str]:
    lines = []
    for option in options:
        name = f"{option.name} {option.value}".strip()
        default = "required" if option.required and not option.positional else f"default: {option.default}" if option.default else ""
        text = f"{option.help.removesuffix('.')} ({default})." if default and "(default" not in option.help else option.help
        lines += two_columns(name, text)
    return lines


def two_columns(name: str, text: str, left: int = LEFT) -> list[str]:
    """A name and what it means; a long name has a line of its own."""
    wrapped = textwrap.wrap(text, width() - left - 2) or [""]
    if len(name) > left - 2:
        return [f"  {name}", *(f"{'':{left + 2}}{line}".rstrip() for line in wrapped)]
    return [f"  {name:{left}}{wrapped[0]}".rstrip(), *(f"{'':{left + 2}}{line}" for line in wrapped[1:])]


def main_page(options: Sequence[Option], names: Sequence[str]) -> list[Option]:
    """Choose the options that `--help` shows of many, in this order; the others are behind `--help-all`.

    Args:
        options: all options.
        names: names of those that matter.
    """
    known = {option.name: option for option in options}
    chosen = [replace(known[name], section="") for each in names for name in (each, f"--no-{each[2:]}") if name in known]
    more = f"List all {len(options)} options: the model, the optimizer, checkpoints, reproducibility."
    return [*(option for option in options if option.positional), *chosen, Option("--help-all", "", more)]


def task_list(about: str, tasks: Mapping[str, type[Any]]) -> str:
    """Return the page that `regard train` without a task prints.

    Args:
        about: description of the command.
        tasks: declarations by name.
    """
    paragraphs, examples = split_examples(about)
    lines = ["usage: regard train TASK [OPTIONS]", "", *paragraphs, "", "Tasks:"]
    for name, task in tasks.items():
        lines += two_columns(name, (inspect.getdoc(task) or "").partition("\n")[0], left=20)
    return "\n".join([*lines, "", "Examples:", *(f"  {example}" for example in examples)])


# -- mistakes ----------------------------------------------------------------------------------------------------------


def check_names(arguments: Sequence[str], program: str, options: Sequence[Option], others: Mapping[str, Iterable[str]]) -> None:
    """Refuse an option that does not exist, naming one that does: of this command, or else `others`, the options of other commands."""
    known = {option.name for option in options if not option.positional} | {"--help", "--help-all", "-h"}
    for argument in arguments:
        if argument == "--":
            return
        name = argument.partition("=")[0].replace("_", "-")
        if not re.fullmatch(r"--[a-z][a-z0-9-]*", name):
            continue
        if name in known:
            _check_switch(argument, name, program, options)
            continue
        raise BadConfig(f"{program} has no option {name}; {_nearest(name, program, known, others)} See {program} --help")


def _check_switch(argument: str, name: str, program: str, options: Sequence[Option]) -> None:
    """Refuse a value for an option that takes none."""
    _, equals, value = argument.partition("=")
    if equals and any(option.name == name and not option.value for option in options):
        off = value.lower() in ("false", "0", "no", "off")
        raise BadConfig(
            f"{argument}: {name} is a switch, which takes no value; {'leave it out' if off else f'write {name}'}. See {program} --help"
        )


def _nearest(name: str, program: str, known: set[str], others: Mapping[str, Iterable[str]]) -> str:
    synonyms = SYNONYMS.get(name, ())
    if synonym := next((one for one in synonyms if one.split()[0] in known), None):
        return f"did you mean {synonym}?"
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.75)
    near = near or [each for each in sorted(known) if len(name) > 4 and (each.startswith(f"{name}-") or name.startswith(f"{each}-"))][:2]
    if near:
        return f"did you mean {' or '.join(near)}?"
    wanted = {name, *(one.split()[0] for one in synonyms)}
    elsewhere = [command for command, names in others.items() if wanted & set(names)]
    if any(program.startswith(f"regard {command} ") for command in elsewhere):
        return "it is an option for runs of other tasks."
    if elsewhere:
        return f"it is an option of {', '.join(f'regard {command}' for command in elsewhere[:3])}."
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else "check the spelling."


def complaint(box: str, program: str, options: Sequence[Option], arguments: Sequence[str]) -> str:
    """tyro's framed message as one line in our words."""
    lines = [re.sub("^[─-]+$", "", line.strip("│╭╮╰╯|+ ")) for line in box.strip().splitlines()]  # - | + where a terminal has no frames
    paragraphs = " ".join(line or "\n" for line in lines[1:]).split("\n")  # the first line is the title of the frame
    first = next((" ".join(words) for words in (paragraph.split() for paragraph in paragraphs) if words), "invalid arguments")
    if first.startswith(("Missing from", "Required", "The following")):
        missing = [option for option in options if option.required and (option.positional or option.name not in arguments)]
        first = "expected " + " and ".join(
            f"{option.name if option.positional else f'{option.name} {option.value}'}: {option.help.rstrip('.')}" for option in missing
        )
    known = {option.name: option for option in options}

    def typed(name: str, value: str) -> str:
        """An option with the value as it stands on the command line."""
        given = [*arguments, ""]
        if value.startswith("("):
            return f"{name} {value.strip('()').replace(',', '')}"
        found = (given[n + 1] if one == name else one.partition("=")[2] for n, one in enumerate(arguments) if one.partition("=")[0] == name)
        return f"{name} {next(found, value)}"

    def bound(match: re.Match[str]) -> str:
        name = f"--{match[1].replace('_', '-')}"
        return f"{typed(name, match[2])}: expected" if name in known else match[0]

    def kind(match: re.Match[str]) -> str:
        value = known[match[1]].value if match[1] in known else ""
        words = {"N": "a whole number", "X": "a number", "PATH": "a path", "X X": "two numbers", "N N": "two whole numbers"}
        expected = words.get(value, value or "another value")
        return f"{typed(match[1], match[2])}: expected {expected}"

    first = re.sub(r"Error parsing (\S+): no type matching .* could be instantiated from \[(.*)\]", kind, first)
    first = re.sub(r"Error parsing (?:train|task|generation|engine): ", "", first)
    first = re.sub(r"(?:\b[A-Z]\w+\()?\b([a-z_]+)=(\([^()]*\)|[^,;()]*)\)?[,:] expected", bound, first)
    for pattern, words in (
        (r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.+)", r"\1 \2: expected a whole number"),
        (r"Error parsing (\S+): could not convert string to float: (.+)", r"\1 \2: expected a number"),
        (r"Error parsing (\S+): ", r"\1: "),
        (r"Missing value for argument '(\S+)'\. Expected 1 values", r"\1: expected a value"),
        (r"Missing value for argument '(\S+)'\. Expected", r"\1: expected"),
        (r"invalid choice '(.+)' for argument '(\S+)'\. Expected one of \((.+)\)", r"\2 \1: expected one of \3"),
        (r"Unrecognized options: (.+)", r"unexpected \1"),
    ):
        first = re.sub(pattern, words, first)
    return f"{first.rstrip('.')}; see {program} --help"
