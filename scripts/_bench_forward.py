"""Calls of a backend that does nothing, through each object of the forward path: _bench_forward.py ROUNDS.

For scripts/bench, on a Python that sees SGLang. Prints microseconds per call, a list for each object, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.attention import hybrid_attn_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_draft_ext.extend import DraftExtendBackend
from sglang_draft_ext.hybrid import prefill_and_extend
from sglang_draft_ext.multistep import MultiStepDraftBackend

CALLS = 2000  # of each object in a round
REQUESTS = 4


class Quiet(AttentionBackend):
    """Attends to nothing, at once."""

    needs_cpu_seq_lens = False

    def init_forward_metadata(self, forward_batch: Any) -> None:
        pass

    def forward(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, **_: Any) -> Any:
        return q


def runner() -> Any:
    """As much of a draft's ModelRunner as the objects ask for when they are built."""
    pool = SimpleNamespace(req_to_token=torch.zeros((REQUESTS, 64), dtype=torch.int32), size=REQUESTS)
    arguments = SimpleNamespace(
        page_size=1, speculative_attention_mode="prefill", speculative_draft_window_size=None
    )
    return SimpleNamespace(
        page_size=1,
        server_args=arguments,
        req_to_token_pool=pool,
        token_to_kv_pool=SimpleNamespace(),
        kv_index_translator=None,
        kv_cache_dtype=torch.float32,
        model_config=SimpleNamespace(is_encoder_decoder=False, context_len=64),
        is_draft_worker=True,
        device="cpu",
    )


def batch(mode: str) -> Any:
    lengths = torch.full((REQUESTS,), 8, dtype=torch.int64)
    return SimpleNamespace(
        forward_mode=ForwardMode[mode],
        batch_size=REQUESTS,
        seq_lens=lengths,
        seq_lens_cpu=lengths,
        seq_lens_sum=8 * REQUESTS,
        req_pool_indices=torch.arange(REQUESTS),
        out_cache_loc=torch.arange(REQUESTS * 2),
        extend_prefix_lens=None,
        extend_prefix_lens_cpu=None,
        extend_seq_lens=None,
        spec_info=None,
    )


def calls() -> dict[str, Callable[[], Any]]:
    """One call of each object, by its name."""
    # What a launch would have published.
    hybrid_attn_backend.get_spec = lambda: SimpleNamespace(speculative_attention_mode="prefill")
    decode, extend = batch("DECODE"), batch("DRAFT_EXTEND_V2")
    steps = MultiStepDraftBackend(runner(), 1, 3, attention=lambda _: Quiet())
    steps.init_forward_metadata(decode)
    decode.out_cache_loc = decode.out_cache_loc[:REQUESTS]
    objects = {
        "the backend itself": (Quiet(), extend),
        "stock's HybridAttnBackend": (
            hybrid_attn_backend.HybridAttnBackend(runner(), Quiet(), Quiet()),
            extend,
        ),
        "prefill and extend differ": (prefill_and_extend(runner(), prefill=Quiet(), extend=Quiet()), extend),
        "a draft extend as an extend": (DraftExtendBackend(Quiet()), extend),
        "a step of draft decode": (steps.attn_backends[0], decode),
    }
    tokens = torch.zeros((REQUESTS, 8))
    layer = SimpleNamespace()

    def call(backend: Any, forward_batch: Any) -> Callable[[], Any]:
        return lambda: backend.forward(tokens, tokens, tokens, layer, forward_batch)

    return {name: call(*given) for name, given in objects.items()}


def main(rounds: int) -> None:
    measured: dict[str, list[float]] = {}
    order = random.Random(0)
    each = calls()
    for number in range(rounds + 1):
        for name in order.sample(list(each), len(each)):
            call = each[name]
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            taken = (time.perf_counter() - began) / CALLS * 1e6
            if number:  # the first round warms up
                measured.setdefault(name, []).append(taken)
    print(json.dumps({name: measured[name] for name in each}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
