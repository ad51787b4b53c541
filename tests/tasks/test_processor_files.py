"""Files of image, pixel and stroke processors with one value replaced: they load as something finite, or are refused by name."""

import json
import math
from dataclasses import asdict, is_dataclass

import pytest

from regard.errors import BadFile, RegardError
from regard.tasks.handwriting import StrokeProcessor
from regard.tasks.image_processor import ImageProcessor
from regard.tasks.pixel_processor import PixelProcessor

PROCESSORS = [
    ImageProcessor(size=(8, 8), channels=1, mean=(0.5,), std=(0.5,), labels=("a", "b")),
    ImageProcessor(size=(8, 8), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3, shortest_edge=9),
    PixelProcessor(size=(8, 8), channels=1, levels=17),
    StrokeProcessor("abc", 2.0),
]
VALUES = [0, -1, 2**63, 10**40, 0.5, math.inf, -math.inf, math.nan, True, None, "", "x", [], {}, [1] * 1000, [math.inf], [math.nan]]


def numbers(value):
    if isinstance(value, dict | list | tuple):
        return [n for one in (value.values() if isinstance(value, dict) else value) for n in numbers(one)]
    return [value] if isinstance(value, int | float) else []


def places(value, here=()):
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*here, key)
        yield from places(child, (*here, key))


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda one: f"{type(one).__name__}-{getattr(one, 'channels', '')}")
def test_every_value_replaced(processor, tmp_path):
    processor.save(tmp_path)
    (path,) = (one for one in tmp_path.iterdir() if one.name != "labels.json")
    whole, refused = path.read_text(), 0
    for *above, key in places(json.loads(whole)):
        for value in VALUES:
            plain = parent = json.loads(whole)
            for step in above:
                parent = parent[step]
            parent[key] = value
            path.write_text(json.dumps(plain))
            try:
                loaded = type(processor).load(tmp_path)
            except RegardError as error:
                refused += 1
                assert path.name in str(error) and "\n" not in str(error)
            else:
                assert is_dataclass(loaded) and all(map(math.isfinite, numbers(asdict(loaded)))), (above, key, value)
    assert refused > 20
    path.write_text(whole)
    assert type(processor).load(tmp_path) == processor


def test_a_list_in_place_of_the_file(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text("[]")
    with pytest.raises(BadFile, match="preprocessor_config"):
        ImageProcessor.load(tmp_path)
