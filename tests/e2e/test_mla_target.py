"""A DeepSeek-style target, with latent attention, and a Llama EAGLE3 draft, without: two kinds of KV cache in one server."""

import _environment
import pytest

ASKED = {"SGLANG_DRAFT_EXT_BACKENDS": "torch_native"}


@pytest.fixture(scope="session")
def models():
    return _environment.mla_models()


def eagle3(draft_model, topk, draft=None):
    flags = [
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", str(draft_model)),
        *("--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(4 if topk == 1 else 6)),
    ]
    return flags + (["--speculative-draft-attention-backend", draft] if draft else [])


@pytest.fixture(scope="session")
def alone(servers, models):
    """Stock without the package, without speculation."""
    return servers.see(extended=False, model=models[0])


@pytest.fixture(scope="session", params=[1, 2], ids=lambda topk: f"topk{topk}")
def stock_and_extra(request, servers, models):
    target, draft = models
    stock = servers.see(*eagle3(draft, request.param), extended=False, model=target)
    extra = servers.see(*eagle3(draft, request.param, "torch_native"), extended=True, env=ASKED, model=target)
    return stock, extra


def test_says_the_same_as_without_speculation(servers, alone, stock_and_extra):
    stock, extra = stock_and_extra
    assert alone.tokens == servers.expected
    assert stock.tokens == extra.tokens == alone.tokens


def test_accepts_as_much_as_stocks_own_draft(stock_and_extra):
    stock, extra = stock_and_extra
    assert extra.accept_lengths == stock.accept_lengths
    assert all(length > 2 for length in extra.accept_lengths)
