"""BLEU and chrF by sacrebleu on detokenised, cased text, and exact match; by source length too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._extras import extra


@dataclass(frozen=True)
class TranslationScore:
    """Quality of translations."""

    bleu: float  # corpus BLEU, in percent
    chrf: float  # corpus chrF, in percent
    exact_match: float  # share of translations that are the reference
    signature: str  # sacrebleu's, which says how BLEU was computed
    by_length: dict[str, tuple[int, float, float]]  # source words "1–5" → (sentences, BLEU, exact match)
    longest: int = 4  # words of the longest reference

    @property
    def has_bleu(self) -> bool:
        """BLEU counts four words in a row: where no reference has as many it could only be 0, and it is left out."""
        return self.longest >= 4

    def metrics(self) -> dict[str, float]:
        bleu = {"bleu": self.bleu} if self.has_bleu else {}
        return {**bleu, "chrf": self.chrf, "exact_match": self.exact_match}


def score_translations(found: Sequence[str], right: Sequence[str], sources: Sequence[str] | None = None, step: int = 5) -> TranslationScore:
    """BLEU and chrF by sacrebleu, and exact match.

    Args:
        found: translations.
        right: a reference per translation.
        sources: source sentences; with them, scores are also given by their length.
        step: words per group of lengths.
    """
    with extra("train"):
        import sacrebleu

    bleu, signature = corpus_bleu(found, [right])
    same = [a.strip() == b.strip() for a, b in zip(found, right, strict=True)]
    groups: dict[int, list[int]] = {}
    for number, source in enumerate(sources or ()):
        groups.setdefault((max(len(source.split()), 1) - 1) // step, []).append(number)
    by_length = {}
    for group, numbers in sorted(groups.items()):
        part, _ = corpus_bleu([found[n] for n in numbers], [[right[n] for n in numbers]])
        by_length[f"{group * step + 1}–{(group + 1) * step}"] = (len(numbers), part, sum(same[n] for n in numbers) / len(numbers))
    chrf = sacrebleu.corpus_chrf(list(found), [list(right)]).score
    longest = max((len(text.split()) for text in right), default=0)
    return TranslationScore(bleu, chrf, sum(same) / max(len(same), 1), signature, by_length, longest)


def corpus_bleu(found: Sequence[str], references: Sequence[Sequence[str | None]]) -> tuple[float, str]:
    """BLEU and the signature of how it was computed.

    Args:
        found: texts.
        references: one list per set of references, each with a reference per text; None where a text has fewer.
    """
    with extra("train"):
        import sacrebleu

    bleu = sacrebleu.BLEU(effective_order=False)
    whole = bleu.corpus_score(list(found), [list(one) for one in references])  # type: ignore[arg-type]  # None is allowed
    return whole.score, str(bleu.get_signature())
