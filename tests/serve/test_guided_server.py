"""Fields that change nothing, and answers with a grammar, asked for with OpenAI's client: whatever the model, what is finished is valid."""

import json
import re
import time

import pytest
from small_server import KEY, NAME, Served, tiny

from regard.serve import schemas
from regard.serve.responses import ApiError

pydantic = pytest.importorskip("pydantic", reason="comes with OpenAI's client, and checks what its schemas describe")
pytest.importorskip("llguidance", reason="guided decoding is an extra: pip install 'regard[guided]'")

LIMITS = schemas.Limits(NAME, vocab_size=100, context_length=50, max_batch=4)
ASK = [{"role": "user", "content": "hi"}]
WILD = {"model": NAME, "temperature": 2, "max_tokens": 500}
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]


class Answer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    name: str = pydantic.Field(max_length=6)
    count: int = pydantic.Field(ge=0, le=99)
    right: bool


FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": Answer.model_json_schema()}}

NOTHING = {
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "none",
    "store": False,
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "service_tier": "auto",
    "modalities": ["text"],
    "user": "u",
    "safety_identifier": "x",
    "prompt_cache_key": "x",
    "skip_special_tokens": True,
    "ignore_eos": False,
    "min_tokens": 0,
    "logit_bias": {},
    "stop_token_ids": [],
    "cache_prompt": True,
    "prediction": None,
}
SOMETHING = {
    "store": True,
    "service_tier": "flex",
    "modalities": ["text", "audio"],
    "skip_special_tokens": False,
    "ignore_eos": True,
    "min_tokens": 3,
    "min_tokens ": 0,
    "stop_token_ids": [3],
    "audio": {"voice": "x"},
    "reasoning_effort": "high",
    "metadata": "x",
    "length_penalty": True,
}


@pytest.mark.parametrize("read", [schemas.read_completion, schemas.read_chat], ids=["completion", "chat"])
def test_fields_that_change_nothing(read):
    base = {"messages": ASK} if read is schemas.read_chat else {}
    plain = read(json.dumps(base).encode(), LIMITS)
    for name, value in NOTHING.items():
        same = read(json.dumps({**base, name: value}).encode(), LIMITS)
        assert same.options() == plain.options(), name
    read(json.dumps({**base, **NOTHING}).encode(), LIMITS)
    for name, value in SOMETHING.items():
        with pytest.raises(ApiError, match=f"^{name}: ") as refused:
            read(json.dumps({**base, name: value}).encode(), LIMITS)
        assert refused.value.param == name and refused.value.code in ("unsupported_value", "unknown_argument")
    with pytest.raises(ApiError, match="temperature"):  # what does change something is still checked
        read(json.dumps({**base, **NOTHING, "temperature": 5}).encode(), LIMITS)


def test_beyond_the_context(client, served):
    """As on the command line: the oldest tokens are dropped."""
    found = client.completions.create(model=NAME, prompt="once", max_tokens=300, logit_bias={"2": -100})
    assert found.usage.completion_tokens == 300 > served.service.limits.context_length
    with pytest.raises(ApiError, match="max_tokens"):
        schemas.read_completion(b'{"max_tokens": 1000000}', LIMITS)


@pytest.mark.parametrize("seed", range(5))
def test_json_schema(client, seed):
    found = client.chat.completions.create(messages=ASK, response_format=FORMAT, seed=seed, **WILD)
    assert found.choices[0].finish_reason == "stop"
    Answer.model_validate_json(found.choices[0].message.content)
    parsed = client.chat.completions.parse(messages=ASK, response_format=Answer, seed=seed, **WILD)
    assert isinstance(parsed.choices[0].message.parsed, Answer)


def test_json_object(client):
    found = client.chat.completions.create(messages=ASK, response_format={"type": "json_object"}, n=4, seed=1, **WILD).choices
    done = [json.loads(one.message.content) for one in found if one.finish_reason == "stop"]
    assert done and all(isinstance(one, dict) for one in done)


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({"structured_outputs": {"json": Answer.model_json_schema()}}, lambda text: Answer.model_validate_json(text)),
        ({"guided_json": json.dumps(Answer.model_json_schema())}, lambda text: Answer.model_validate_json(text)),
        ({"structured_outputs": {"regex": r"[A-C]{2}\d"}}, lambda text: re.fullmatch(r"[A-C]{2}\d", text)),
        ({"guided_regex": r"[A-C]{2}\d"}, lambda text: re.fullmatch(r"[A-C]{2}\d", text)),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in ("yes", "no")),
        ({"guided_choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_forms_of_vllm(client, asked, fits):
    for create, given in ((client.completions.create, {"prompt": ["a", "b"]}), (client.chat.completions.create, {"messages": ASK})):
        found = create(**given, extra_body=asked, seed=1, **WILD)
        texts = [one.message.content if hasattr(one, "message") else one.text for one in found.choices]
        assert all(fits(text) for text in texts), texts


def check_call(call):
    arguments = json.loads(call.function.arguments)
    assert (call.function.name == "weather" and arguments in ({"city": "Oslo"}, {"city": "Rome"})) or (call.function.name, arguments) == (
        "now",
        {},
    )


@pytest.fixture(scope="module")
def talker():
    """A client of a model whose context holds the descriptions of tools."""
    openai = pytest.importorskip("openai", reason="OpenAI's Python client is not installed")
    with Served(KEY, tiny(1024)) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_tools(talker):
    client = talker
    for seed in range(4):
        (choice,) = client.chat.completions.create(messages=ASK, tools=TOOLS, tool_choice="required", seed=seed, **WILD).choices
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        check_call(choice.message.tool_calls[0])
    named = {"type": "function", "function": {"name": "weather"}}
    (choice,) = client.chat.completions.create(messages=ASK, tools=TOOLS, tool_choice=named, **WILD).choices
    assert choice.finish_reason == "stop" and choice.message.tool_calls[0].function.name == "weather"
    again = [*ASK, choice.message.to_dict(), {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "sun"}]
    assert (
        client.chat.completions.create(messages=again, tools=TOOLS, tool_choice="none", model=NAME, max_tokens=3).choices[0].message.content
    )
    found = client.chat.completions.create(messages=ASK, tools=TOOLS, n=4, seed=1, **{**WILD, "max_tokens": 60}).choices
    for choice in found:  # auto: text or a call, as the model likes
        if choice.message.tool_calls:
            check_call(choice.message.tool_calls[0])
        else:
            assert not choice.message.content.startswith("<tool_call>") or choice.finish_reason == "length"


def test_streams(talker):
    client = talker
    events = [event.choices[0] for event in client.chat.completions.create(messages=ASK, response_format=FORMAT, stream=True, **WILD)]
    Answer.model_validate_json("".join(event.delta.content or "" for event in events))
    for choice, reason in (("required", "tool_calls"), ("auto", None)):
        asked = {**WILD, "max_tokens": 300, "seed": 1}
        whole = client.chat.completions.create(messages=ASK, tools=TOOLS, tool_choice=choice, **asked).choices[0]
        events = [e.choices[0] for e in client.chat.completions.create(messages=ASK, tools=TOOLS, tool_choice=choice, stream=True, **asked)]
        assert events[0].delta.role == "assistant" and events[-1].finish_reason == whole.finish_reason
        assert "".join(event.delta.content or "" for event in events) == (whole.message.content or "")
        calls = [call for event in events for call in event.delta.tool_calls or ()]
        assert [c.function for c in calls] == [] or [c.function.arguments for c in calls] == [
            c.function.arguments for c in whole.message.tool_calls
        ]
        assert reason is None or (events[-1].finish_reason == reason and calls)


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer", "minimum": 2, "maximum": 1}}}},
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        {"response_format": {"type": "json_object"}, "stop": "}"},
        {"guided_regex": "("},
        {"guided_regex": "a" * 100_000},
        {"guided_choice": []},
        {"guided_choice": [""]},
        {"guided_json": "{"},
        {"guided_json": {"$ref": "http://localhost/x"}},
        {"guided_json": {"$ref": "#"}},
        {"tools": TOOLS, "response_format": {"type": "json_object"}},
        {"tools": [TOOLS[1], TOOLS[1]]},
        {"tools": [{"type": "function", "function": {"name": "not a name"}}]},
        {"tools": [{"type": "web_search"}]},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tool_choice": "required"},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}]},
    ],
    ids=lambda body: json.dumps(body)[:60],
)
def test_refused_by_name(served, body):
    status, _, found = served.ask("POST", "/v1/chat/completions", {"messages": ASK, "max_tokens": 5, **body})
    assert status == 400 and found["error"]["message"], found


def test_a_grammar_that_takes_too_long(served):
    """A request must not hold a thread for a minute; others are answered meanwhile."""
    start = time.monotonic()
    body = {"prompt": "x", "guided_json": {"type": "integer", "multipleOf": 9999991}}
    status, _, found = served.complete(**body)
    assert status == 400 and "too complex" in found["error"]["message"] and time.monotonic() - start < 30
    assert served.complete(prompt="x", guided_regex="[ab]{3}", max_tokens=9)[2]["choices"][0]["text"].strip("ab") == ""
    assert served.idle()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with Served(KEY) as served:
        status, _, found = served.complete(prompt="x", guided_json={"type": "object"})
    assert status == 400 and "pip install 'regard[guided]'" in found["error"]["message"]
