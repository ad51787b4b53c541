"""Some of the cases of `make fuzz`: options that nobody should give are refused by typed errors of one line."""

import pytest
import torch
from tests.fuzz import fuzz_options

from regard.errors import BadConfig, OutOfMemory
from regard.models import MODELS, build


def test_options_of_every_kind_give_typed_errors():
    wrong = [(number, *found) for number in range(600) if (found := fuzz_options.run(number, "tests"))[1]]
    assert not wrong


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.facts.name)
def test_a_model_that_fits_into_no_memory_is_refused_at_once(model):
    known, small = model.Config.__dataclass_fields__, fuzz_options.SMALL
    settings = {name: small[name] for name in known if name in small}
    for name in ("width", "depth", "vocab_size", "source_vocab_size", "hidden", "embedding", "codes"):
        for value in (10**20, 2**31 - 2):
            if name in known:
                with pytest.raises((BadConfig, OutOfMemory)):
                    build(model.facts.name, {**settings, name: value})


def test_the_message_says_how_much_and_what_to_do():
    with pytest.raises(OutOfMemory, match=r"gpt2 with these settings takes more than .* GiB, and .* GiB is available; choose smaller"):
        build("gpt2", {"vocab_size": 11, "width": 10_000_000})


def test_the_check_of_the_size_draws_nothing():
    torch.manual_seed(0)
    expected = build("reformer", {"vocab_size": 11, "width": 8, "heads": 2}).state_dict()
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.models.size.check_size", lambda name, make: None)
        found = build("reformer", {"vocab_size": 11, "width": 8, "heads": 2}).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
