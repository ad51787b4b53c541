"""Routes about the server itself: tokens, the description of all routes, and the page made of it."""

import re

import msgspec

from regard.serve.schemas import ChatRequest


def test_tokenize(served):
    status, _, found = served.ask("POST", "/tokenize", {"prompt": "aé"})
    assert status == 200 and found == {"count": 4, "max_model_len": 128, "tokens": [1, *served.tokenizer.encode("aé")], "token_strs": None}
    found = served.ask("POST", "/tokenize", {"prompt": "ab", "add_special_tokens": False, "return_token_strs": True})[2]
    assert (found["count"], found["token_strs"]) == (2, ["a", "b"])
    assert served.ask("POST", "/tokenize", {"prompt": "x" * 1000})[2]["count"] == 1001  # longer than the model reads
    assert served.ask("POST", "/detokenize", {"tokens": served.tokenizer.encode("aé")})[2] == {"prompt": "aé"}
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": [1]}),
        ("/detokenize", {"tokens": [260]}),
        ("/detokenize", {"tokens": "x"}),
    ):
        assert served.ask("POST", path, body)[0] == 400
    assert served.ask("POST", "/tokenize", {"prompt": "x"}, {"Authorization": "x"})[0] == 401


def test_openapi(served):
    status, _, found = served.ask("GET", "/openapi.json", headers={"Authorization": ""})  # holds nothing secret
    assert status == 200 and found["openapi"] == "3.1.0"
    assert set(found["paths"]) >= {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/v1/models/{name}", "/health"}
    schemas = found["components"]["schemas"]
    assert set(ChatRequest.__struct_fields__) <= set(schemas["ChatRequest"]["properties"])
    assert schemas["ChatRequest"]["properties"]["store"] == {"enum": [False, None], "description": "changes nothing"}
    named = set(re.findall(r'"#/components/schemas/(\w+)"', msgspec.json.encode(found).decode()))
    assert named <= set(schemas)


def test_page_of_all_routes(served):
    status, headers, found = served.ask("GET", "/docs", headers={"Authorization": ""})
    assert status == 200 and headers["content-type"].startswith("text/html") and "default-src 'none'" in headers["content-security-policy"]
    assert (
        "POST /v1/chat/completions" in found
        and "temperature" in found
        and "<script" not in found
        and "http" not in found.split("<body>")[1]
    )


def test_dimensions(served):
    for dimensions, status in ((None, 200), (32, 200), (16, 400)):
        assert served.ask("POST", "/v1/embeddings", {"input": "x", "dimensions": dimensions})[0] == status
