"""Readers in transformers' files: the scores of its own classes, and back; text in, answer out as its pipeline gives it."""

import json

import pytest
import torch
from tests.interop.conftest import edit_config, randomize

from regard import load
from regard.cli import main
from regard.data import Tokenizer, Tokenizers
from regard.errors import NotSupported, RegardError
from regard.interop.checkpoints import export
from regard.models import SpanReader, build
from regard.runs import save
from regard.tasks import TextProcessor, load_run, make_run, predict

transformers = pytest.importorskip("transformers", reason="the oracle")

SIZES = {"vocab_size": 37, "max_length": 40, "width": 24, "depth": 2, "hidden": 20}
BODIES = {
    "bert": {"heads": 3},
    "bert, roberta": {"heads": 3, "padding": 1, "segments": 1, "nsp_head": False},
    "bert, distilbert": {"heads": 3, "segments": 0, "pooler": False, "nsp_head": False},
    "fnet": {},
    "nystromformer": {"heads": 3, "nsp_head": False, "pooler": False, "landmarks": 40, "segmented": 64, "kernel": 5},
}


def make_reader(name, **changes):
    torch.manual_seed(0)
    return randomize(SpanReader(build(name.partition(",")[0], {**SIZES, **BODIES[name], **changes}))).eval()


def rows(n=32):
    generator = torch.Generator().manual_seed(2)
    ids_BL = torch.randint(4, 37, (2, n), generator=generator)
    return ids_BL, torch.full((2,), n), (torch.arange(n) >= 7).long().expand(2, n)


@pytest.mark.parametrize("name", BODIES)
@torch.no_grad()
def test_scores_match_transformers(name, tmp_path):
    model = make_reader(name)
    export(model, tmp_path)
    hf, info = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert hf.config.architectures == [type(hf).__name__]
    ids_BL, n_B, segment_BL = rows()
    more = {"token_type_ids": segment_BL} if model.body.config.segments > 1 else {}
    theirs, mine = hf.eval()(ids_BL, attention_mask=torch.ones_like(ids_BL), **more), model.scores(ids_BL, n_B, segment_BL)
    torch.testing.assert_close(mine, torch.stack([theirs.start_logits, theirs.end_logits], -1), atol=1e-5, rtol=0)
    hf.save_pretrained(tmp_path / "again")  # and back, from files of its own
    back = load(tmp_path / "again")
    assert isinstance(back, SpanReader) and torch.equal(back.scores(ids_BL, n_B, segment_BL), mine)


@torch.no_grad()
def test_text_to_answer_as_its_pipeline_has_it(tmp_path, capsys):
    """Offsets and spans: the same answer with the same characters as transformers finds for the exported files."""
    context = "Zoë Quinn sang in Paris, and 東京 in 1854–1855; the 👩‍🚀 slept."
    tokenizer = Tokenizer.train([context, "Where did Zoë sing?"] * 3, "bpe", 320)
    torch.manual_seed(1)
    body = build("bert", {**SIZES, "heads": 3, "vocab_size": len(tokenizer), "max_length": 128, "mlm_head": False, "nsp_head": False})
    model, run, out = randomize(SpanReader(body)), tmp_path / "run", tmp_path / "out"
    save(make_run("question-answering", model, TextProcessor(Tokenizers(tokenizer))), run)
    assert main(["export", str(run), "--to", "huggingface", "--out", str(out)]) == 0
    hf, reader = (kind.from_pretrained(out) for kind in (transformers.AutoModelForQuestionAnswering, transformers.AutoTokenizer))
    given = reader("Where did Zoë sing?", context, return_offsets_mapping=True, return_tensors="pt")
    offsets = given.pop("offset_mapping")[0].tolist()
    found = hf.eval()(**given)
    inside = (given["token_type_ids"][0] == 1) & (torch.arange(len(offsets)) < len(offsets) - 1)
    scores = found.start_logits[0][:, None] + found.end_logits[0]
    scores = scores.masked_fill(~(inside[:, None] & inside & torch.ones_like(scores).triu().tril(29).bool()), -torch.inf)
    first, last = divmod(int(scores.argmax()), len(offsets))
    theirs = context[offsets[first][0] : offsets[last][1]].strip()
    (answer,) = predict(load_run(run), [f"Where did Zoë sing?\t{context}"])
    assert answer.values["answer"] == theirs == context[answer.values["start"] : answer.values["end"]]
    again = tmp_path / "again"
    assert main(["import", str(out), "--out", str(again)]) == 0  # another run, without data, that answers alike
    capsys.readouterr()
    for folder in (run, again):
        assert main(["predict", str(folder), f"Where did Zoë sing?\t{context}", "--json"]) == 0
    one, two = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert one == {**two, "probability": pytest.approx(two["probability"], abs=1e-5)}
    assert main(["evaluate", str(again)]) == 2 and "no data of its own" in capsys.readouterr().err


def test_what_would_differ_is_refused(tmp_path):
    with pytest.raises(NotSupported, match="no reader of spans that computes what this big_bird"):
        export(SpanReader(build("big_bird", {**SIZES, "heads": 3, "block": 4})), tmp_path / "out")
    with pytest.raises(NotSupported, match="no counterpart of this san"):
        export(build("san", vocab_size=9), tmp_path / "out")
    export(make_reader("bert"), tmp_path)
    edit_config(tmp_path, architectures=["LongformerForQuestionAnswering"])
    with pytest.raises(RegardError, match="is not supported; supported are"):
        load(tmp_path)
