"""A draft's runner and batch around a `RandomDraft`, with what the stock attention backends of any release ask of them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import SimpleNamespace as NS
from typing import Any

import pytest
import torch
from oracle import DEVICE, KVPool, RandomDraft

ATTENTION = "sglang.srt.layers.attention"
STOCK = {
    "torch_native": ("torch_native_backend", "TorchNativeAttnBackend"),
    "triton": ("triton_backend", "TritonAttnBackend"),
    "flex_attention": ("torch_flex_backend", "TorchFlexAttnBackend"),
}


def stock(name: str) -> Any:
    """The class of the release's own backend; skips the test where it has none, or none that runs."""
    module, attribute = STOCK[name]
    module = f"{ATTENTION}.{module}"
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"this release has no {name}")
    backend = getattr(importlib.import_module(module), attribute)
    if name == "flex_attention" and not isinstance(vars(backend)["_decode_mask"], staticmethod):
        pytest.skip("this release's mask is a bound method, which this torch refuses")
    return backend


def publish(setattr: Callable[[Any, str, Any], None], *more: str) -> None:
    """Answers, in the stock modules that ask and in *more*, what a launch would have published."""
    answers = {
        "get_exec": NS(
            kernel=NS(
                enable_lean_attention=False,
                triton_attention_num_kv_splits=2,
                triton_attention_split_tile_size=None,
            ),
            dllm=NS(dllm_algorithm=None),
            deterministic=NS(enable_deterministic_inference=False),
            features=NS(enable_mis=False),
        ),
        "get_spec": NS(
            speculative_num_draft_tokens=4,
            speculative_num_steps=3,
            speculative_eagle_topk=1,
            speculative_draft_window_size=None,
            speculative_attention_mode="prefill",
        ),
        "get_schedule": NS(page_size=1, chunked_prefill_size=512),
        "get_parallel": NS(attn_tp_size=1, attn_dcp_size=1, attn_dcp_rank=0, dcp_enabled=False),
        "get_attention_tp_size": 1,
        "get_cuda_graph_max_batch_size": 8,
        "get_platform": NS(is_sm100=False),
        "is_sm100_supported": False,
        "cuda_graph_fully_disabled": True,
        "mambaish_config": None,
        "resolve_draft_decode_window": (0, 0),
    }
    for module in (
        f"{ATTENTION}.triton_backend",
        "sglang.srt.mem_cache.kv_index_translator",
        "sglang.srt.speculative.spec_utils",
        *more,
    ):
        if importlib.util.find_spec(module) is None:
            continue
        loaded = importlib.import_module(module)
        for name, answer in answers.items():
            if hasattr(loaded, name):
                setattr(loaded, name, lambda *args, _answer=answer, **kwargs: _answer)


class SizedDraft(RandomDraft):
    """A batch of the asked size with nothing to attend to, to see what its preparation costs.

    Every request has *context* tokens. The request table has as many rows as requests, or *requests*: then it takes no memory,
    and shows one slot everywhere.
    """

    def __init__(
        self, *, batch: int, topk: int, steps: int, context: int, requests: int | None = None
    ) -> None:
        self.topk, self.num_steps, self.page_size, self.mla = topk, steps, 1, False
        heads = {"tp_q_head_num": 8, "tp_k_head_num": 8, "tp_v_head_num": 8}
        self.layer = NS(**heads, head_dim=64, qk_head_dim=64, v_head_dim=64)
        self.seq_lens = torch.full((batch,), context, device=DEVICE)
        self.rows = torch.arange(batch, device=DEVICE)
        shape = (requests or batch, context + topk * steps)
        slots = torch.zeros(1) if requests else torch.arange(shape[0] * shape[1]).view(shape)
        self.req_to_token = slots.to(DEVICE, torch.int32).expand(shape)
        self.out_cache_loc = torch.arange(batch * topk * steps, device=DEVICE)
        self.pool = KVPool(*(torch.zeros(16, 8, 64, device=DEVICE) for _ in range(2)))


def runner_of(draft: RandomDraft, sliding_window_size: int | None = None) -> Any:
    """A ``ModelRunner`` of the draft, as far as attention backends look at it."""
    arguments = NS(
        page_size=draft.page_size, triton_attention_num_kv_splits=2, triton_attention_split_tile_size=None,
        enable_deterministic_inference=False, speculative_num_draft_tokens=4, disable_cuda_graph=True,
        speculative_num_steps=draft.num_steps, speculative_eagle_topk=draft.topk, chunked_prefill_size=512,
        enable_lean_attention=False, speculative_attention_mode="prefill",
    )  # fmt: skip
    layer = draft.layer
    config = NS(
        num_attention_heads=layer.tp_q_head_num, get_max_num_attention_heads=lambda: layer.tp_q_head_num,
        get_num_kv_heads=lambda *_: layer.tp_k_head_num,
        context_len=draft.req_to_token.shape[1], is_encoder_decoder=False, attention_arch=None,
        head_dim=layer.qk_head_dim, v_head_dim=layer.v_head_dim, swa_v_head_dim=layer.v_head_dim,
        is_hybrid_swa=False, hf_config=NS(architectures=["LlamaForCausalLM"], get_text_config=NS),
        linear_attn_registry_result=None, is_draft_model=True,
    )  # fmt: skip
    if draft.mla:
        from sglang.srt.configs.model_config import AttentionArch

        config.attention_arch = AttentionArch.MLA
    pool = draft.pool
    allocator = NS(page_size=draft.page_size, get_kvcache=lambda: pool)
    runner = NS(
        server_args=arguments, model_config=config, token_to_kv_pool=pool, use_mla_backend=draft.mla,
        token_to_kv_pool_allocator=allocator,
        req_to_token_pool=NS(size=len(draft.req_to_token), req_to_token=draft.req_to_token),
        device=DEVICE, gpu_id=0,
        sliding_window_size=sliding_window_size, kv_cache_dtype=torch.float32, dtype=torch.float32,
        is_draft_worker=True, page_size=draft.page_size, decode_num_tokens_per_req=lambda: 1,
        hybrid_gdn_config=None, kimi_linear_config=None, linear_attn_model_spec=None, mambaish_config=None,
        hybrid_lightning_config=None, mamba2_config=None,
        spec_algorithm=NS(is_dspark=lambda: False, is_frozen_kv_mtp=lambda: False),
    )  # fmt: skip
    try:
        translator = importlib.import_module("sglang.srt.mem_cache.kv_index_translator").KVIndexTranslator
    except ModuleNotFoundError:
        return runner
    runner.kv_index_translator = translator(
        req_to_token=draft.req_to_token,
        token_to_kv_pool_allocator=allocator,
        token_to_kv_pool=pool,
        page_size=draft.page_size,
        device=DEVICE,
    )
    return runner


def batch_of(draft: RandomDraft, runner: Any) -> Any:
    """The ``ForwardBatch`` with which the draft's decode begins."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return draft.forward_batch(
        ForwardMode.DECODE,
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool=runner.token_to_kv_pool,
    )
