"""`regard completion`: a script that completes commands, options and names in bash, zsh or fish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tyro.conf import Positional

from . import _facts, _pages
from ._command import Command

Shell = Literal["bash", "zsh", "fish"]

# bash and zsh ask for the words that may follow; the table is in the script, so that completing runs nothing.
BASH = """\
_regard() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} words=""
  if [ "$COMP_CWORD" = 1 ]; then
    words="{commands}"
  else
    [ "$command" = train ] && [ "$COMP_CWORD" -gt 2 ] && command="train ${{COMP_WORDS[2]}}"
    case "$command" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [ ${{#COMPREPLY[@]}} -eq 0 ] && compopt -o default 2>/dev/null
}}
complete -F _regard regard
"""
ZSH = "autoload -Uz compinit bashcompinit && compinit -u && bashcompinit\n" + BASH
HOW = {
    "bash": '# In ~/.bashrc:  eval "$(regard completion bash)"',
    "zsh": '# In ~/.zshrc:  eval "$(regard completion zsh)"',
    "fish": "# regard completion fish > ~/.config/fish/completions/regard.fish",
}


@dataclass(frozen=True, kw_only=True)
class Completion(Command):
    """Print a completion script for bash, zsh or fish.

    It completes commands, options and names.

    As in:  regard completion bash >> ~/.bashrc
            regard completion fish > ~/.config/fish/completions/regard.fish
    """

    shell: Positional[Shell]
    """bash, zsh or fish."""

    def run(self) -> None:
        print(HOW[self.shell])
        print(script(self.shell), end="")


def script(shell: Shell) -> str:
    """The script of a shell; every word in it is a name, and has no characters that a shell would interpret."""
    words = _words()
    if shell == "fish":
        return _fish(words)
    cases = "\n".join(f"      {name!r}) words={' '.join(given)!r} ;;" for name, given in words.items() if name)
    return {"bash": BASH, "zsh": ZSH}[shell].format(commands=" ".join(words[""]), cases=cases)


def _words() -> dict[str, list[str]]:
    """Words that may follow each command; "" is the program itself."""
    from . import COMMANDS

    names = {kind: [entry["name"] for entry in _facts.entries(kind)] for kind in ("mechanisms", "models", "tasks", "recipes")}
    first = {
        "list": [*names, "patterns"],
        "show": [name for kind in names.values() for name in kind],
        "train": names["tasks"],
        "compare": names["mechanisms"],
        "check": names["mechanisms"],
        "run": names["recipes"],
        "completion": list(get_args(Shell)),
        "swap": names["mechanisms"],
    }
    found = {"": [*COMMANDS, "help", "version"]}
    for name, flags in _pages.flags().items():
        found[name] = [*first.get(name, ()), *flags, "--help"]
    return found


def _fish(words: dict[str, list[str]]) -> str:
    lines = [f"complete -c regard -n __fish_use_subcommand -f -a {' '.join(words[''])!r}"]
    for name, given in words.items():
        if not name:
            continue
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        plain = [word for word in given if not word.startswith("--")]
        if plain:
            lines.append(f"complete -c regard -n {seen!r} -a {' '.join(plain)!r}")
        lines += [f"complete -c regard -n {seen!r} -l {word[2:]}" for word in given if word.startswith("--")]
    return "\n".join(lines) + "\n"
