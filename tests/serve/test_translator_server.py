"""A translator behind /v1/completions: sources in, the translations of `tasks.predict` out."""

import pytest
import torch
from small_server import KEY, NAME, Served

from regard.data import Tokenizer, Tokenizers
from regard.decode import Beam
from regard.models import build
from regard.serve.translator import TranslatorService
from regard.tasks import TextProcessor, make_run
from regard.tasks.translation import bound_task, translations

SOURCES = ["a small cat", "dogs", "the third text"]


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    tokenizer = Tokenizer.train([], "byte", 260)
    sizes = {"width": 32, "heads": 2, "hidden": 64, "depth": 1, "max_length": 64}
    model = build("transformer", {"source_vocab_size": 260, "target_vocab_size": 260, **sizes}).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 3
    return make_run("translation", model, TextProcessor(Tokenizers(tokenizer)))


@pytest.fixture(scope="module")
def served(run):
    with Served(KEY, service=TranslatorService(run, NAME)) as server:
        yield server


def texts(found):
    return [choice["text"] for choice in found["choices"]]


def test_beam_search_by_default(run, served):
    status, _, found = served.complete(prompt=SOURCES, max_tokens=20)
    text = bound_task(run).text
    hypotheses = [answers for _, answers in translations(run, SOURCES, Beam(size=4, max_tokens=20))]
    assert status == 200 and texts(found) == [text(answers[0]) for answers in hypotheses]
    assert [one["finish_reason"] for one in found["choices"]] == ["stop" if answers[0].finished else "length" for answers in hypotheses]
    assert found["usage"]["prompt_tokens"] == sum(map(len, SOURCES))
    nbest = translations(run, SOURCES[:1], Beam(size=6, nbest=3, max_tokens=20))[0][1]
    assert texts(served.complete(prompt=SOURCES[0], n=3, best_of=6, temperature=0, max_tokens=20)[2]) == [text(one) for one in nbest]


def test_sampling(served):
    asked = {"prompt": SOURCES, "temperature": 1.0, "n": 2, "seed": 5, "max_tokens": 12}
    one, two = (texts(served.complete(**asked)[2]) for _ in "ab")
    assert one == two and len(one) == 6 and one[0] != one[1]
    assert texts(served.complete(**{**asked, "seed": 6})[2]) != one


def test_client(served):
    openai = pytest.importorskip("openai", reason="OpenAI's Python client is not installed")
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
        found = client.completions.create(model=NAME, prompt=SOURCES[0], max_tokens=9, extra_body={"stream": False, "store": False})
    assert found.choices[0].text is not None and found.usage.completion_tokens <= 9


def test_other_routes(served):
    assert served.ask("GET", "/v1/models")[2]["data"][0]["id"] == NAME
    assert served.ask("GET", "/")[0] == served.ask("GET", "/docs")[0] == served.ask("GET", "/health")[0] == 200
    assert served.ask("POST", "/tokenize", {"prompt": "ab"})[2]["tokens"] == [*Tokenizer.train([], "byte", 260).encode("ab"), 2]
    assert served.ask("POST", "/v1/chat/completions", {})[0] == 404
    assert served.ask("POST", "/explorer/captures", {"text": SOURCES[0]})[0] == 200


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [5, 6]}, "prompt"),
        ({"prompt": "x" * 65}, "prompt"),
        ({"stream": True}, "stream"),
        ({"logprobs": 1}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"stop": "x"}, "stop"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 100}, "n"),
    ],
    ids=str,
)
def test_refused_by_name(served, body, name):
    status, _, found = served.complete(**{"prompt": "a", **body})
    assert status == 400 and found["error"]["param"] == name, found
    assert served.idle()
