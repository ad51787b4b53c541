"""Draw the picture of docs/documents.md: `python docs/documents.py RUN`, a run of `regard train classify --model han` on reviews of films."""

from __future__ import annotations

import sys
from pathlib import Path

from regard.tasks import attention_maps, load_run

HERE = Path(__file__).parent
REVIEW = (
    "I wanted to like this film. The poster is beautiful, and the first scene is promising. Then the plot falls apart, and the jokes are not funny. "
    "The acting is terrible, above all that of the hero, who has one face for every feeling. It was filmed in Iceland with a lot of money. "
    "The music is lovely. After two hours I was bored, and my friend was asleep. What a waste of talent!"
)


def main(run: str) -> None:
    text, maps = attention_maps(load_run(run), REVIEW)
    print(text)
    maps.save_png(HERE / "pictures" / "document.png", layer="document")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/imdb")
