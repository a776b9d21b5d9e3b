"""Drafting by the release's own classes where its draft maps lack the name; `catalogue` says where that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FLASH_ATTENTION_4 = {"fa_impl_ver": 4}


def flash_attention_4_decode(runner: Any, topk: int, num_steps: int) -> Any:
    """The release's multi-step class of FlashAttention, which cannot be told the version, with steps that can."""
    from sglang.srt.layers.attention.flashattention_backend import (
        FlashAttentionBackend,
        FlashAttentionMultiStepBackend,
    )

    built = FlashAttentionMultiStepBackend(runner, topk, num_steps)
    steps = range(len(built.attn_backends))
    built.attn_backends = [
        FlashAttentionBackend(
            runner, speculative_step_id=i, topk=topk, speculative_num_steps=num_steps, **FLASH_ATTENTION_4
        )
        for i in steps
    ]
    return built


def flash_attention_4_extend(runner: Any) -> Any:
    """The release's FlashAttention, told the version."""
    from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend

    return FlashAttentionBackend(runner, skip_prefill=False, **FLASH_ATTENTION_4)


def no_extend(_runner: Any) -> None:
    """None, with which stock runs draft extend eagerly, on the draft runner's own backend."""


DECODE: dict[str, Callable[[Any, int, int], Any]] = {"fa4": flash_attention_4_decode}
EXTEND: dict[str, Callable[[Any], Any]] = {"fa4": flash_attention_4_extend, "flashmla": no_extend}
