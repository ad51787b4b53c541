"""Generated scenes: what the captions say is what the pixels show."""

import numpy as np
import pytest

from regard.data.scenes import COLOURS, SHAPES, UNSEEN, class_names, recognise, scenes, silhouette
from regard.errors import NotSupported, UnknownName


@pytest.fixture(scope="module")
def some():
    return scenes("count=300")


def test_the_same_seed_gives_the_same_scenes(some):
    again, more, other = scenes("count=300"), scenes("count=20"), scenes("count=300,seed=1")
    assert all((a.pixels == b.pixels).all() and a[1:] == b[1:] for a, b in zip(some, again, strict=True))
    assert all((a.pixels == b.pixels).all() for a, b in zip(some, more, strict=False))  # a scene depends on its number alone
    assert [a.captions for a in some] != [b.captions for b in other]


def test_every_pixel_is_of_one_object_or_white(some):
    for scene in some:
        left = np.ones(scene.pixels.shape[:2], dtype=bool)
        for thing in scene.things:
            x, y, right, bottom = thing.box
            mine = (scene.pixels == COLOURS[thing.colour]).all(-1)
            assert (mine[y:bottom, x:right] == silhouette(thing.shape, right - x)).all()
            assert mine.sum() == mine[y:bottom, x:right].sum() > 0  # nothing of this colour outside its box
            left &= ~mine
        assert (scene.pixels[left] == 255).all()


def test_relations_hold_and_words_are_unambiguous(some):
    seen = set()
    for scene in (one for one in some if len(one.things) == 2):
        first, second = scene.things
        assert first.colour != second.colour and first.shape != second.shape
        (x, y), (u, v) = first.centre, second.centre
        true = {"left of": x < u, "right of": x > u, "above": y < v, "below": y > v}
        relation = scene.captions[0].removeprefix(f"a {first} ").removesuffix(f" a {second}")
        axis = abs(x - u) > abs(y - v)
        assert true[relation] and (relation in ("left of", "right of")) == axis
        assert len(set(scene.captions)) == 4 and all(str(first) in one and str(second) in one for one in scene.captions)
        seen.add(relation)
    assert len(seen) == 4


def test_more_objects_than_two():
    some = scenes("count=200,objects=4")
    assert {len(one.things) for one in some} == {1, 2, 3, 4}
    for scene in (one for one in some if len(one.things) > 2):
        assert len({thing.colour for thing in scene.things}) == len({thing.shape for thing in scene.things}) == len(scene.things)
        related = [caption for caption in scene.captions if " and " not in caption]
        assert related and len(scene.captions) - len(related) == len(scene.things) * (len(scene.things) - 1)
        for caption in related:
            first, second = sorted((thing for thing in scene.things if str(thing) in caption), key=lambda thing: caption.index(str(thing)))
            (x, y), (u, v) = first.centre, second.centre
            true = {"left of": x < u, "right of": x > u, "above": y < v, "below": y > v}
            assert true[caption.removeprefix(f"a {first} ").removesuffix(f" a {second}")]


def test_places_of_single_objects():
    for scene in scenes("count=100,objects=1,size=48"):
        (thing,) = scene.things
        x, y = thing.centre
        where = scene.captions[1].removeprefix(f"a {thing} ")
        assert ("left" in where, "right" in where) == (x < 16, x >= 32)
        assert ("top" in where, "bottom" in where) == (y < 16, y >= 32)
        assert (where == "in the middle") == (16 <= x < 32 and 16 <= y < 32)


def test_pairings_are_held_out():
    seen, unseen = (
        {str(thing) for scene in scenes(f"count=300,pairings={which}") for thing in scene.things} for which in ("seen", "unseen")
    )
    assert unseen == set(class_names("unseen")) == {f"{colour} {shape}" for colour, shape in UNSEEN} and not seen & unseen
    assert len(seen) == len(COLOURS) * len(SHAPES) - len(UNSEEN)
    assert {colour for colour, _ in UNSEEN} == set(COLOURS) and {shape for _, shape in UNSEEN} == set(SHAPES)  # each word is known


@pytest.mark.parametrize("size", [16, 17, 19, 20, 24, 32, 64])
def test_pixels_are_read_back(size):
    assert all(recognise(one.pixels) == str(one.things[0]) for one in scenes(f"count=100,objects=1,size={size}"))


def test_nothing_is_read_from_white():
    assert recognise(np.full((16, 16, 3), 255, dtype=np.uint8)) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("count=0", "1 to"),
        ("size=4", "16 to"),
        ("objects=5", "1 to 4"),
        ("objects=3,shapes=2", "1 to 2"),
        ("pairings=x", "all, seen, unseen"),
        ("count=x", "integer"),
    ],
)
def test_bad_options(text, says):
    with pytest.raises(NotSupported, match=says):
        scenes(text)


def test_an_unknown_option():
    with pytest.raises(UnknownName, match="colour"):
        scenes("colour=red")
    with pytest.raises(NotSupported, match="GiB"):
        scenes("count=1000000,size=512")
