"""The parts of multistep that need neither torch nor SGLang: the view of a batch, and what an import costs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_draft_ext.multistep import _page_size, _StepBackend, _StepBatch, _StepRows

pytestmark = pytest.mark.unit


class Mode(Enum):
    DECODE = 1
    IDLE = 2
    EXTEND = 3

    def is_idle(self) -> bool:
        return self is Mode.IDLE


ROWS = _StepRows(
    batch_size=4,
    req_pool_indices="rows",
    seq_lens="lengths",
    seq_lens_cpu="lengths on the host",
    seq_lens_sum=40,
    max_seq_len_host=12,
    out_cache_loc="the step's slots",
    kv_loc_cols=slice(1, 2),
)


def batch(mode: Mode = Mode.EXTEND, **more: Any) -> Any:
    return SimpleNamespace(
        forward_mode=mode, batch_size=2, seq_lens="prefixes", spec_info="draft input", **more
    )


def test_a_view_shows_the_steps_rows_and_the_live_rest() -> None:
    live = batch(positions="positions", out_cache_loc="all slots")
    view = _StepBatch(live, "pool", ROWS)
    assert (view.batch_size, view.seq_lens, view.seq_lens_sum) == (4, "lengths", 40)
    assert view.forward_mode is Mode.DECODE
    assert (view.req_to_token_pool, view.spec_info) == ("pool", None)
    assert view.out_cache_loc == "the step's slots"
    live.positions = "advanced"
    assert view.positions == "advanced"


def test_writes_to_a_view_stay_there_or_reach_the_batch() -> None:
    live = batch()
    view = _StepBatch(live, "pool", ROWS)
    view.seq_lens = "changed"
    view.something_else = "noted by a backend"
    assert live.seq_lens == "prefixes"
    assert live.something_else == "noted by a backend"


def test_all_layers_see_one_view_until_the_step_is_prepared_again() -> None:
    container = SimpleNamespace(
        req_to_token_pool="pool", token_to_kv_pool="KV", kv_index_translator=None, _branches=None
    )
    step, first, second = _StepBackend(SimpleNamespace(), container), batch(), batch()
    step.step_rows = ROWS
    view = step.view(first)
    assert step.view(first) is view
    assert step.view(second).__wrapped__ is second
    view = step.view(first)
    step.step_rows = replace(ROWS, batch_size=8)
    assert step.view(first) is not view
    assert step.view(first).batch_size == 8
    first.forward_mode = Mode.IDLE
    assert step.view(first).batch_size == 2


def test_an_idle_batch_keeps_its_rows() -> None:
    view = _StepBatch(batch(Mode.IDLE), "pool", None)
    assert view.forward_mode is Mode.IDLE
    assert (view.batch_size, view.seq_lens, view.spec_info) == (2, "prefixes", None)
    # Names that the release does not know are absent values, not errors.
    assert view.kv_loc_cols is None


@pytest.mark.parametrize(
    ("runner", "expected"),
    [
        (SimpleNamespace(token_to_kv_pool_allocator=SimpleNamespace(page_size=16), page_size=1), 16),
        (SimpleNamespace(page_size=64), 64),
        (SimpleNamespace(page_size=None), 1),
    ],
)
def test_page_size_is_the_allocators(runner: Any, expected: int) -> None:
    assert _page_size(runner) == expected


def test_import_loads_neither_torch_nor_sglang() -> None:
    code = "import sys, sglang_draft_ext.multistep; print(*sorted({'torch', 'sglang'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
