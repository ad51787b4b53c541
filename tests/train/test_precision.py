"""bfloat16 only where it is safe; chosen once, kept when the run goes on; weights stay float32."""

import pytest
import torch
from safetensors.torch import load_file
from tiny import Net, Tiny, config, same

from regard.data import Splits, Tokenizers
from regard.errors import BadConfig, NotSupported
from regard.machine import Bf16, autocast, bf16, choose_precision
from regard.models import build
from regard.tasks import TaskObjective, TextProcessor, Translation, TranslationOptions
from regard.train import fit

CPU = torch.device("cpu")
FAST = Bf16(True, True, False, "works, at least 2.0× as fast as float32")
SLOW = Bf16(True, False, False, "works, but slower than float32: not used (matmul takes 31×)")
CAPPED = Bf16(True, True, True, "works only with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, at least 2.0× as fast as float32")
DEADLY = Bf16(False, False, False, "crashes (SIGILL): not used")
here = pytest.mark.skipif(not bf16().usable or bf16().needs_cap, reason="a bfloat16 product would end this process")


@pytest.fixture
def machine(monkeypatch):
    return lambda found: monkeypatch.setattr("regard.machine.bf16", lambda: found)


@pytest.mark.parametrize(
    ("found", "wanted", "before", "chosen"),
    [
        (FAST, "auto", "", "bfloat16"),
        (SLOW, "auto", "", "float32"),
        (CAPPED, "auto", "", "float32"),
        (DEADLY, "auto", "", "float32"),
        (FAST, "auto", "float32", "float32"),  # a run that goes on stays what it was
        (SLOW, "auto", "bfloat16", "bfloat16"),
        (DEADLY, "auto", "bfloat16", "float32"),  # unless it would die of it
        (SLOW, "bfloat16", "", "bfloat16"),
        (FAST, "float32", "bfloat16", "float32"),
    ],
)
def test_who_decides(machine, found, wanted, before, chosen):
    machine(found)
    got, said = choose_precision(wanted, CPU, before)
    assert got == chosen
    assert (found.note in said) == (wanted == "auto" and before != "float32")


def test_asked_for_where_it_is_not_safe(machine):
    machine(DEADLY)
    with pytest.raises(NotSupported, match=r"SIGILL.*use precision float32"):
        choose_precision("bfloat16", CPU)
    machine(CAPPED)
    with pytest.raises(NotSupported, match=r"ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.*set that in the environment and start again"):
        choose_precision("bfloat16", CPU)
    with pytest.raises(BadConfig, match="one of float32, bfloat16, auto"):
        config(precision="float16")


def test_float32_asks_nobody(monkeypatch):
    monkeypatch.setattr("regard.machine.bf16", lambda: pytest.fail("asked"))
    assert choose_precision("float32", CPU) == ("float32", "")
    with torch.autocast("cpu", torch.bfloat16), autocast("float32", CPU):
        assert torch.is_autocast_enabled("cpu")  # what the caller has set stays


class Watched(Net):
    def forward(self, x):
        out = super().forward(x)
        self.seen = {*getattr(self, "seen", ()), (self.training, self.read(x).dtype)}
        return out


@here
def test_products_are_short_and_weights_are_not(tmp_path):
    net, exact = Watched(), Net()
    fit(net, Tiny(), config(precision="bfloat16"), tmp_path / "a", progress=False)
    fit(exact, Tiny(), config(), tmp_path / "b", progress=False)
    assert net.seen == {(True, torch.bfloat16), (False, torch.float32)}  # evaluated as it will be used
    assert all(x.dtype == torch.float32 for x in load_file(tmp_path / "a" / "model.safetensors").values())
    assert not net.read.weight.equal(exact.read.weight)
    torch.testing.assert_close(net.read.weight, exact.read.weight, atol=0.02, rtol=0.05)


@here
def test_going_on_is_the_same_bits_whatever_the_machine_says_now(tmp_path, machine, capsys):
    once, twice = Net(), Net()
    machine(FAST)
    fit(once, Tiny(), config(precision="auto"), tmp_path / "a", progress=False)
    fit(Net(), Tiny(), config(precision="auto", steps=10), tmp_path / "b", progress=False)
    assert capsys.readouterr().err.count("precision: bfloat16 (works, at least 2.0×") == 2
    machine(SLOW)
    fit(twice, Tiny(), config(precision="auto"), tmp_path / "b", resume=True, progress=False)
    same(once, twice)


@here
@pytest.mark.parametrize("name", ["transformer", "rnnsearch"])
def test_translators_learn_in_bfloat16(name):
    pairs = [("one two", "eins zwei"), ("three", "drei"), ("four five six seven", "vier fünf sechs sieben")]
    tokenizers = Tokenizers.train(pairs, "word", 100, joint=True, min_count=1)
    size = len(tokenizers.source)
    more = {"heads": 2, "hidden": 32, "depth": (1, 1)} if name == "transformer" else {}
    torch.manual_seed(0)
    model = build(name, {"source_vocab_size": size, "target_vocab_size": size, "width": 16, "dropout": 0.0, **more})
    task = TaskObjective(Translation(TranslationOptions(data="x"), TextProcessor(tokenizers)), Splits(pairs, pairs, []), model)
    batch = task.batch(task.batches(0)[0], torch.Generator())
    with autocast("bfloat16", CPU):
        short = task.loss(model, batch).total
    exact = task.loss(model, batch).total
    ours, theirs = (torch.autograd.grad(total, list(model.parameters())) for total in (short, exact))
    torch.testing.assert_close(short, exact, rtol=0.02, atol=0.0)
    assert {x.dtype for x in (short, *ours)} == {torch.float32}
    length = sum(float((x**2).sum()) for x in theirs) ** 0.5
    assert sum(float(((x - y) ** 2).sum()) for x, y in zip(ours, theirs, strict=True)) ** 0.5 < 0.05 * length


def test_what_has_no_short_form_is_said():
    with pytest.raises(NotSupported, match="precision float32"), autocast("bfloat16", CPU):
        raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive")
    with pytest.raises(RuntimeError, match="else"), autocast("bfloat16", CPU):
        raise RuntimeError("something else")
