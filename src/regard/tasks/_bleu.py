"""How good translations are: BLEU and chrF by sacrebleu on detokenised, cased text, and exact match; by source length too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """How good translations are."""

    bleu: float
    chrf: float
    exact_match: float
    signature: str
    by_length: dict[str, tuple[int, float, float]]  # source words "1–5" → (sentences, BLEU, exact match)
    longest: int = 4  # words of the longest reference

    @property
    def has_bleu(self) -> bool:
        """BLEU counts four words in a row: where no reference has as many it could only be 0, and it is left out."""
        return self.longest >= 4

    def metrics(self) -> dict[str, float]:
        bleu = {"bleu": self.bleu} if self.has_bleu else {}
        return {**bleu, "chrf": self.chrf, "exact_match": self.exact_match}


def score(found: Sequence[str], right: Sequence[str], sources: Sequence[str] | None = None, step: int = 5) -> Score:
    """BLEU and chrF by sacrebleu, exact match; by source length too if the sources are given."""
    import sacrebleu

    bleu = sacrebleu.BLEU(effective_order=False)
    whole = bleu.corpus_score(list(found), [list(right)])
    same = [a.strip() == b.strip() for a, b in zip(found, right, strict=True)]
    groups: dict[int, list[int]] = {}
    for number, source in enumerate(sources or ()):
        groups.setdefault((max(len(source.split()), 1) - 1) // step, []).append(number)
    by_length = {}
    for group, numbers in sorted(groups.items()):
        part = sacrebleu.corpus_bleu([found[n] for n in numbers], [[right[n] for n in numbers]])
        by_length[f"{group * step + 1}–{(group + 1) * step}"] = (len(numbers), part.score, sum(same[n] for n in numbers) / len(numbers))
    chrf = sacrebleu.corpus_chrf(list(found), [list(right)]).score
    longest = max((len(text.split()) for text in right), default=0)
    return Score(whole.score, chrf, sum(same) / max(len(same), 1), str(bleu.get_signature()), by_length, longest)
