"""Chats and embeddings, with OpenAI's own client: templates in a sandbox, messages streamed and whole, vectors of language models and encoders."""

import base64
import gc
import json

import pytest
import tokenizers
import torch
from small_server import NAME, Served, tiny
from tokenizers import decoders, models, pre_tokenizers

from regard.data import HFTokenizer, Tokenizers
from regard.decode import GenerationOptions, PromptEncoder, generate
from regard.errors import BadFile, NotSupported
from regard.models import build
from regard.serve import chat
from regard.serve.chat import ChatTemplate
from regard.serve.responses import ApiError
from regard.serve.templates import MAX_SIZE
from regard.tasks import TextProcessor, make_run

openai = pytest.importorskip("openai", reason="OpenAI's Python client is not installed")
TEMPLATE = (  # ChatML, as many models have it
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


def chat_tokenizer(template=TEMPLATE, eos_ids=()):
    """Bytes, and four special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    native = tokenizers.Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    native.pre_tokenizer, native.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    native.add_special_tokens(["<s>", "<|im_start|>", "<|im_end|>", "</s>"])
    return HFTokenizer(native, {"bos": 256, "eos": 259}, eos_ids, chat_template=template)


@pytest.fixture(scope="module")
def chatting():
    """A model with a chat template, which two tokens end."""
    with Served(None, model=(tiny()[0], chat_tokenizer(eos_ids=(258, 259)))) as server:
        yield server


def client_of(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key or "none", max_retries=0)


def test_templates_are_those_of_transformers(tmp_path):
    """What transformers renders from the same directory, token by token."""
    transformers = pytest.importorskip("transformers")
    chat_tokenizer().save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = HFTokenizer.from_directory(tmp_path).with_generation({}, [258, 259], [])
    assert ours.eos_ids == (258, 259) and HFTokenizer.from_json(json.loads(json.dumps(ours.to_json()))) == ours
    template = ChatTemplate(PromptEncoder(ours, 260))
    text = template.render(HELLO)
    assert text == theirs.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)
    assert template.encode(text) == theirs.encode(text, add_special_tokens=False) and template.encode(text)[:2] == [256, 257]
    assert PromptEncoder(ours, 260).eos_ids == (258, 259)


def test_a_template_may_be_a_file_of_its_own(tmp_path):
    chat_tokenizer("from the config").save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert HFTokenizer.from_directory(tmp_path).chat_template == "from the file"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ 'x' * 10**9 }}", "{{ 'x' * 1000000000 }}", "{{ 9 ** 9999999 }}",
        "{{ '%999999999d' % 1 }}", "{{ raise_exception('no') }}", "{{ messages[0].nothing.more }}", "{% for a in range(10**7) %}{% endfor %}",
        "{% for a in range(90000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}", "{% include 'x' %}",
        "{% set ns = namespace(x='xx') %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{{ cycler.__init__.__globals__ }}", "{{ strftime_now.__globals__ }}", "{{ 'a' | center(10**9) }}", "{{ 'a'.ljust(10**10) }}",
        "{% set ns = namespace(x='xx') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | length }}",
        "{% set a = 'x' * 99999 %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 20 + "{{ a | length }}",
        "{% set a = [1] %}" + "{% set a = [a, a] %}" * 40 + "{{ a }}", "{{ [1] | batch(10**9, 'x') | list | length }}",
        "{{ '{:999999999d}'.format(1) }}", "{{ ('x' * 99999).replace('', 'x' * 99999) | length }}", "{{ messages | tojson(indent=10**9) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{{ " + "[" * 90 + "]" * 90 + " }}",
        "{{ 9 ** 9 ** 9 }}", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", "{{ lipsum(n=100000) | length }}",
    ],
)  # fmt: skip
def test_templates_can_do_no_harm(template, monkeypatch):
    monkeypatch.setattr(chat, "SECONDS", 0.5)
    try:
        text = ChatTemplate(PromptEncoder(chat_tokenizer(template), 260)).render(HELLO)
    except ApiError as error:
        assert error.param == "messages" and len(error.message) < 400
    except BadFile as error:  # constants are folded when a template is compiled
        assert "chat template" in str(error) and "\n" not in str(error) and len(str(error)) < 400
    else:
        assert len(text) <= MAX_SIZE and "class" not in text and "module" not in text


def test_a_template_that_was_killed_is_rendered_again(monkeypatch):
    """Its process is started anew, and ends with the template."""
    made = ChatTemplate(
        PromptEncoder(
            chat_tokenizer(
                "{% if messages | length > 2 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}ok"
            ),
            260,
        )
    )
    assert made.render(HELLO) == "ok"
    monkeypatch.setattr(chat, "SECONDS", 0.3)
    with pytest.raises(ApiError, match=r"longer than the 0\.3 s"):
        made.render(HELLO * 2)
    monkeypatch.undo()
    assert made.render(HELLO) == "ok"
    process = made._child._process
    del made
    gc.collect()
    assert process.poll() is not None


def test_templates_that_are_none():
    for wrong in ("{% for %}", "{{", "{{ x }}" * 2**17):
        with pytest.raises(BadFile, match="chat template"):
            ChatTemplate(PromptEncoder(chat_tokenizer(wrong), 260))


def test_chat(chatting):
    """The completion of the rendered prompt; both end tokens end it."""
    service = chatting.service
    ids = service.template.encode(service.template.render(HELLO))
    options = GenerationOptions(temperature=0, max_tokens=20)
    (right,) = generate(service.engine.model, chatting.tokenizer, [ids], options)[0]
    assert service.engine.eos_ids == {258, 259}
    with client_of(chatting) as client:
        ask = {"model": NAME, "messages": HELLO, "temperature": 0}
        found = client.chat.completions.create(**ask, max_tokens=20)
        assert (found.object, found.usage.prompt_tokens, len(found.choices)) == ("chat.completion", len(ids), 1)
        assert (found.choices[0].message.role, found.choices[0].message.content) == ("assistant", right.text)
        assert found.choices[0].finish_reason == right.finish_reason
        parts = list(client.chat.completions.create(**ask, max_completion_tokens=20, stream=True, stream_options={"include_usage": True}))
        assert parts[0].choices[0].delta.role == "assistant" and parts[0].object == "chat.completion.chunk"
        assert "".join(part.choices[0].delta.content or "" for part in parts[:-1]) == right.text
        assert [part.choices[0].delta.role for part in parts[1:-1]] == [None] * (len(parts) - 2)
        assert parts[-2].choices[0].finish_reason == right.finish_reason and parts[-1].usage.completion_tokens == len(right.ids)
        filled = client.chat.completions.create(**ask, logit_bias={"258": -100, "259": -100})
        assert filled.usage.total_tokens == 128 and filled.choices[0].finish_reason == "length"  # the context, by default


def test_chat_log_probabilities_and_several_answers(chatting):
    with client_of(chatting) as client:
        found = client.chat.completions.create(
            model=NAME, messages=HELLO, n=3, seed=1, max_tokens=5, logprobs=True, top_logprobs=2, logit_bias={"258": -100, "259": -100}
        )
    assert len({choice.message.content for choice in found.choices}) == 3
    for choice in found.choices:
        assert len(choice.logprobs.content) == 5
        assert all(len(token.top_logprobs) == 2 and token.logprob <= token.top_logprobs[0].logprob for token in choice.logprobs.content)


def test_chat_without_a_template(served):
    """Paragraphs after the names of roles; a completion ends where the user would speak again."""
    template = served.service.template
    text = template.render(HELLO)
    assert text == "System: Be kind.\n\nUser: Hello\n\nAssistant:" and "\nUser:" in template.stop
    (right,) = generate(served.service.engine.model, served.tokenizer, text, GenerationOptions(temperature=0, max_tokens=8))[0]
    with client_of(served) as client:
        parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
        for messages in (HELLO, [HELLO[0], {"role": "user", "content": parts}]):
            found = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=8)
            assert found.choices[0].message.content == right.text


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 200}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 20_000}]}, "messages"),
        ({"max_completion_tokens": 100_001}, "max_completion_tokens"),
        ({"n": 100}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"tools": [{}]}}, "tools"),
        ({"extra_body": {"prompt": "x"}}, "prompt"),
    ],
)
def test_wrong_chats_are_refused_by_name(chatting, more, param):
    with client_of(chatting) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": NAME, "messages": HELLO, **more})
    assert caught.value.param == param and caught.value.message


TEXTS = ["Hello", "a longer text than the others", "Hello", "é"]


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_embeddings(kind):
    """Means of features, whatever else is in the batch; in both formats; ids as well as texts."""
    model, tokenizer = tiny()
    if kind == "bert":
        torch.manual_seed(0)
        model = build("bert", {"vocab_size": 261, "max_length": 128, "width": 32, "heads": 2, "depth": 2, "hidden": 64}).eval()
    with Served(None, model=(model, tokenizer)) as served, client_of(served) as client, torch.no_grad():
        found = client.embeddings.create(model=NAME, input=TEXTS)  # base64, unless asked otherwise
        for text, one in zip(TEXTS, found.data, strict=True):
            ids = tokenizer.encode(text)
            framed = torch.tensor([[1, *ids] if kind == "gpt2" else [1, *ids, 2]])
            x = model.features(framed)[0, 1:] if kind == "gpt2" else model.features(framed)[0]
            assert torch.tensor(one.embedding).allclose(torch.nn.functional.normalize(x.mean(0), dim=0), atol=1e-5)
        plain = client.embeddings.create(model=NAME, input=TEXTS[1], encoding_format="float")
        assert plain.data[0].embedding == pytest.approx(found.data[1].embedding, abs=1e-5) and plain.usage.prompt_tokens > len(TEXTS[1])
        assert client.embeddings.create(model=NAME, input=[50, 60]).data[0].index == 0
        raw = served.ask("POST", "/v1/embeddings", {"input": "é", "encoding_format": "base64"})[2]["data"][0]["embedding"]
        assert len(base64.b64decode(raw)) == 4 * 32
        for wrong in ({"input": ""}, {"input": []}, {"input": ["a", [1]]}, {"input": "x" * 200}, {"input": [300]}, {"input": ["a"] * 257}):
            with pytest.raises(openai.BadRequestError) as caught:
                client.embeddings.create(**{"model": NAME, **wrong})
            assert caught.value.param == "input", wrong
        if kind == "bert":
            with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings"):
                client.completions.create(model=NAME, prompt="x")
        assert served.idle()


def test_an_encoder_is_served_in_float32():
    from regard.serve import serve

    model = build("bert", {"vocab_size": 261, "max_length": 16, "width": 16, "heads": 2, "depth": 1, "hidden": 16})
    with pytest.raises(NotSupported, match="float32"):
        serve(lambda: make_run("masked", model, TextProcessor(Tokenizers(tiny()[1]))), "x", port=0, dtype="int8")
