"""Drafts on backends that stock cannot draft with, on trees of several widths and pages of several sizes.

Each says the same as no speculation, and has as many tokens accepted as stock's own triton draft on that tree and page size.
The default is a choice in which every width and either page size occurs; `DRAFT_EXT_FULL=1` is all of it.
"""

from itertools import product

import _environment
import pytest
from _server import last_error, speculative

EXAMPLE = _environment.ROOT / "examples" / "imaginary-accelerator"
SHAPES = tuple(product((1, 2, 4), (1, 16)))  # topk, page size
CHOICE = {"torch_native": [(1, 1), (2, 16)], "flex_attention": [(4, 16)], "imaginary": [(4, 1)]}
CASES = [
    pytest.param((name, *shape), marks=() if shape in chosen else pytest.mark.full)
    for name, chosen in CHOICE.items()
    for shape in SHAPES
]


def flags(topk, page_size, draft=None):
    return [*speculative(topk, draft), *(("--page-size", str(page_size)) if page_size > 1 else ())]


@pytest.fixture(scope="session", params=CASES, ids=lambda case: "{}, topk {}, page size {}".format(*case))
def case(request, servers):
    name, *_ = request.param
    if name == "flex_attention":
        skip_where_it_cannot_run(servers.release)
    return request.param


def skip_where_it_cannot_run(release):
    file = _environment.release_folder(release) / "sglang/srt/layers/attention/torch_flex_backend.py"
    if not file.exists():
        pytest.skip("this release has no flex_attention")
    if "@staticmethod\n    def _decode_mask(" not in file.read_text():
        pytest.skip("this release's decode mask is a bound method, which this torch does not take for a mask")


@pytest.fixture(scope="session")
def stock(servers, case):
    """Stock without the package, draft on its own triton backend, with the same topk and page size."""
    _, topk, page_size = case
    seen = servers.see(*flags(topk, page_size), extended=False)
    if topk > 1 and page_size > 1 and "speculative_eagle_topk > 1 with page_size > 1" in last_error(seen.log):
        pytest.skip("stock refuses trees on pages there, unless the target runs on flashinfer")
    return seen


@pytest.fixture(scope="session")
def extra(servers, case, stock):
    name, *shape = case
    return servers.see(
        *flags(*shape, name),
        extended=True,
        env={"SGLANG_DRAFT_EXT_BACKENDS": name},
        providers=[EXAMPLE] if name == "imaginary" else [],
    )


def test_the_reference_answers_are_right(servers, plain, stock):
    assert plain.tokens == servers.expected
    assert stock.tokens == servers.expected


def test_says_the_same_as_without_speculation(plain, extra):
    assert extra.tokens == plain.tokens


def test_accepts_as_much_as_stocks_own_draft(stock, extra):
    assert extra.accept_lengths == stock.accept_lengths
    assert all(length > 3 for length in extra.accept_lengths)


def test_a_stock_draft_beside_it_stays_stock(servers, plain):
    alone = servers.see(*speculative(2), extended=False)
    beside = servers.see(*speculative(2), extended=True, env={"SGLANG_DRAFT_EXT_BACKENDS": "torch_native"})
    assert beside.tokens == plain.tokens
    assert beside.accept_lengths == alone.accept_lengths
