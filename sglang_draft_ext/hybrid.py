"""One backend for a draft whose prefill and extend differ.

Stock's HybridAttnBackend tells decode from the rest. A draft runner's own backend serves its prompt and its re-reading of
accepted tokens, which stock's rule does not tell apart: so the rule, one method, is replaced, and all else is stock's.
"""

from __future__ import annotations

from functools import cache
from typing import Any


def extend_map_serves_prefill() -> bool:
    """Whether the worker puts the extend map's backend in the place of the draft runner's own (from 0.5.14 on).

    The same release merged the two forward modes of draft extend into one.
    """
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return not hasattr(ForwardMode, "DRAFT_EXTEND")


def prefill_and_extend(runner: Any, *, prefill: Any, extend: Any) -> Any:
    """An AttentionBackend for *runner* that reads the prompt with *prefill* and accepted tokens with *extend*."""
    if is_hybrid(prefill):
        # Adaptive speculation builds the extend backend anew, with the runner's own already replaced by one of these.
        prefill = prefill.prefill_backend
    # The decode child is the one whose CUDA-graph state stock always prepares, and draft extend is what is captured.
    return _kind()(runner, prefill_backend=prefill, decode_backend=extend)


def is_hybrid(backend: Any) -> bool:
    """Whether *backend* is one of `prefill_and_extend`."""
    # Before the first, nothing is; and not every machine can import what stock's module imports.
    return bool(_kind.cache_info().currsize) and isinstance(backend, _kind())


def extend_of(backend: Any) -> Any:
    """What reads accepted tokens: of a backend of `prefill_and_extend` its extend, any other backend itself."""
    return backend.decode_backend if is_hybrid(backend) else backend


@cache
def _kind() -> type[Any]:
    from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend

    class DraftPrefillExtendBackend(HybridAttnBackend):  # type: ignore[misc]
        def _select_backend(self, forward_mode: Any) -> Any:
            drafts = forward_mode.name in ("DRAFT_EXTEND", "DRAFT_EXTEND_V2")
            return self.decode_backend if drafts else self.prefill_backend

    return DraftPrefillExtendBackend
