"""Generated match reports and their headlines: a summary that can be learned in minutes, and has to be read out of the whole text.

    matches:count=5000        On Monday Lodo met Kane. It rained. Ambo scored for Kane. … Kane won 2:1.
                              →  Kane beat Lodo 2:1. Goals by Ambo, Reda and Timo.

The headline has the winner first, the score, and the scorers in their order. What is said besides belongs to no headline. A text has names of one part
only, by the hash of the first team: those of a test are never seen in training, so a model has to copy them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from .copying import pool_of
from .splits import Row

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
OPENINGS = ("On {day} {home} met {away}.", "{home} played {away} on {day}.", "{away} were the guests of {home} on {day}.")
GOALS = ("{player} scored for {team}.", "A goal for {team} by {player}.", "{team} went forward and {player} scored.")
ASIDES = (
    "It rained until noon.", "Some {n} people watched.", "The second half began late.", "{name} was injured.", "{name} hit the post.",
    "{name} saw a yellow card.", "Both teams changed three players.", "After {n} minutes {name} left.",
)  # fmt: skip
ENDINGS = ("{winner} won {score}.", "It ended {score} for {winner}.", "So {winner} left with a {score}.")
MOST_GOALS = 5


def matches(count: int, seed: int, part: Callable[[str], str]) -> list[Row]:
    """Make reports with their headlines.

    Args:
        count: number of reports.
        seed: seed of the generator.
        part: part of the split that a name belongs to.
    """
    generator, together = random.Random(seed), dict[str, list[str]]()
    for name in pool_of(3000, generator):
        together.setdefault(part(name), []).append(name)
    every = [name for some in together.values() for name in some]
    rows = []
    for _ in range(count):
        first = generator.choice(every)
        names = [first, *(name for name in generator.choices(together[part(first)], k=MOST_GOALS + 4) if name != first)]
        rows.append((first, *_report(list(dict.fromkeys(names)), generator)))
    return rows


def _report(names: Sequence[str], generator: random.Random) -> tuple[str, str]:
    """A text and its headline, with a win for one side."""
    home, away, *players = names
    winner, loser = generator.sample((home, away), 2)
    goals = generator.randint(1, min(MOST_GOALS, len(players) - 1))
    won = goals - generator.randrange((goals + 1) // 2)
    sides = [winner] * won + [loser] * (goals - won)
    generator.shuffle(sides)
    scored = [generator.choice(GOALS).format(team=team, player=player) for team, player in zip(sides, players, strict=False)]
    others, score = players[goals:], f"{won}:{goals - won}"
    middle = [(float(n), one) for n, one in enumerate(scored)]
    for one in generator.sample(ASIDES, generator.randint(1, 3)):
        middle.append((generator.randrange(goals + 1) - 0.5, one.format(n=generator.randrange(2, 90), name=generator.choice(others))))
    opening = generator.choice(OPENINGS).format(home=home, away=away, day=generator.choice(DAYS))
    ending = generator.choice(ENDINGS).format(winner=winner, score=score)
    text = " ".join((opening, *(one for _, one in sorted(middle)), ending))
    *some, last = players[:goals]
    scorers = f"Goals by {', '.join(some)} and {last}." if some else f"Goal by {last}."
    return text, f"{winner} beat {loser} {score}. {scorers}"
