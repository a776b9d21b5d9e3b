"""A draft on a backend that stock refuses there: the same tokens, and as many of them accepted."""

import pytest
from _server import speculative

ASKED = {"SGLANG_DRAFT_EXT_BACKENDS": "torch_native"}


@pytest.fixture(scope="session")
def extra_draft(servers, topk):
    return servers.see(*speculative(topk, "torch_native"), extended=True, env=ASKED)


def test_the_reference_answers_are_right(servers, plain, stock_draft):
    assert plain.tokens == servers.expected
    assert stock_draft.tokens == servers.expected


def test_says_the_same_as_without_speculation(plain, extra_draft):
    assert extra_draft.tokens == plain.tokens


def test_accepts_as_much_as_stocks_own_draft(stock_draft, extra_draft):
    assert extra_draft.accept_lengths == stock_draft.accept_lengths
    assert all(length > 3 for length in extra_draft.accept_lengths)


def test_a_stock_draft_beside_it_stays_stock(servers, plain, stock_draft, topk):
    beside = servers.see(*speculative(topk), extended=True, env=ASKED)
    assert beside.tokens == plain.tokens
    assert beside.accept_lengths == stock_draft.accept_lengths


def test_flex_attention_drafts_too(servers, plain):
    seen = servers.see(
        *speculative(2, "flex_attention"), extended=True, env={"SGLANG_DRAFT_EXT_BACKENDS": "flex_attention"}
    )
    assert seen.tokens == plain.tokens
    assert all(length > 3 for length in seen.accept_lengths)
