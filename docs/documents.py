"""Draw the picture of docs/documents.md: `python docs/documents.py RUN`, a run of `regard train classify --model han` on reviews of films."""

from __future__ import annotations

import sys
from pathlib import Path

from regard.tasks import attention_maps, load_run

HERE = Path(__file__).parent
REVIEW = (
    "My sister gave me this film for my birthday, and I had never heard of it. The first half hour takes its time in a small town by the sea. "
    "Then the teacher arrives, and everything changes! The acting is wonderful, above all that of the two children. "
    "I have to admit that the music is annoying. Dr. Lind, who is in almost every scene, has perhaps twenty words to say in 97 minutes. "
    "It was filmed in black and white with very little money. Still, it is one of the best and most touching films that I have seen this year."
)


def main(run: str) -> None:
    text, maps = attention_maps(load_run(run), REVIEW)
    print(text)
    maps.save_png(HERE / "pictures" / "document.png", layer="document")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/imdb")
