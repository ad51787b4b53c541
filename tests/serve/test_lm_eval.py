"""What lm-eval 0.4.13 sends as `local-completions`, and how it reads the responses: both copied from lm_eval/models/openai_completions.py."""

from operator import itemgetter

import pytest
import torch


def payload(messages, seed=1234):
    """LocalCompletionsAPI._create_payload for log-likelihoods."""
    return {"model": "tiny", "prompt": messages, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": seed, "echo": True}


def parse_logprobs(outputs, ctxlens):
    """LocalCompletionsAPI.parse_logprobs."""
    res = []
    for out in outputs:
        for choice, ctxlen in zip(sorted(out["choices"], key=itemgetter("index")), ctxlens, strict=False):
            assert ctxlen > 0, "Context length must be greater than 0"
            logprobs = sum(choice["logprobs"]["token_logprobs"][ctxlen:-1])
            tokens_logprobs = choice["logprobs"]["token_logprobs"][ctxlen:-1]
            top_logprobs = choice["logprobs"]["top_logprobs"][ctxlen:-1]
            is_greedy = True
            for tok, top in zip(tokens_logprobs, top_logprobs, strict=False):
                if tok != max(top.values()):
                    is_greedy = False
                    break
            res.append((logprobs, is_greedy))
    return res


def parse_generations(outputs):
    """LocalCompletionsAPI.parse_generations."""
    res = []
    for out in outputs:
        tmp = [None] * len(out["choices"])
        for choices in out["choices"]:
            tmp[choices["index"]] = choices["text"]
        res += tmp
    return res


@pytest.mark.parametrize("tokenised", [True, False])
def test_log_likelihoods(served, tokenised):
    """Sums of log-probabilities of continuations, and whether each is the greedy one."""
    model, encode = served.service.engine.model, served.tokenizer.encode
    pairs = [("Hello", " world"), ("a", "b"), ("The cat sat on", " the mat"), ("x y z", "é")]
    with torch.no_grad():  # and one that is greedy
        ids = [1, *encode("greedy:")]
        for _ in range(3):
            ids.append(int(model(torch.tensor([ids]))[0, -1, 4:].argmax()) + 4)
    contexts = [[1, *encode(context)] for context, _ in pairs] + [ids[:-3]]
    wholes = [[*context, *encode(more)] for context, (_, more) in zip(contexts, pairs, strict=False)] + [ids]
    if tokenised:
        prompts, ctxlens = wholes, [len(context) for context in contexts]
    else:  # text, which the server begins as documents begin
        prompts, ctxlens = [context + more for context, more in pairs], [len(encode(context)) for context, _ in pairs]
    status, _, out = served.ask("POST", "/v1/completions", payload(prompts))
    assert status == 200
    got = parse_logprobs([out], ctxlens)
    for (log_prob, greedy), context, whole in zip(got, contexts, wholes, strict=False):
        with torch.no_grad():
            scores = model(torch.tensor([whole]))[0].log_softmax(-1)
        places = range(len(context) - 1, len(whole) - 1)
        assert log_prob == pytest.approx(sum(scores[at, whole[at + 1]].item() for at in places), abs=1e-3)
        assert greedy == all(scores[at].argmax().item() == whole[at + 1] for at in places)
    assert not tokenised or got[-1][1]


def test_generations(served):
    """LocalCompletionsAPI._create_payload for generate_until."""
    body = {
        "prompt": [[1, 50, 60], [1, 70]],
        "model": "tiny",
        "max_tokens": 8,
        "temperature": 0,
        "stop": ["\n\n", "⟨eos⟩", "Q:"],
        "seed": 1234,
    }
    status, _, out = served.ask("POST", "/v1/completions", body)
    found = parse_generations([out])
    assert status == 200 and len(found) == 2 and all(isinstance(text, str) for text in found)


def test_it_asks_whether_tokenizers_are_served(served):
    assert served.ask("GET", "/tokenizer_info")[0] == 404
