"""The kernel as an SGLang attention backend, on every release from 0.5.2 on.

SGLang keeps keys and values in a pool of slots, and in the request table, for each request, the slots of its tokens in
order, whatever the page size. A forward pass writes its own tokens' keys and values first, then reads the request's.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType

from imaginary_accelerator.kernel import attend


class ImaginaryAttnBackend(AttentionBackend):
    """Serves prompts, the re-reading of accepted tokens, and single tokens. It verifies no trees: it is for drafts.

    Raises:
        NotImplementedError: the KV pool is of a kind that the kernel cannot read.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        # Keep the pools, not the tables in them: sglang-draft-ext gives each batch of branches a table of its own.
        # From 0.5.13 on, SGLang itself looks for both attributes here.
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        if hasattr(self.token_to_kv_pool, "full_to_swa_index_mapping"):
            raise NotImplementedError("imaginary: no KV pool with sliding-window layers of their own")
        if model_runner.kv_cache_dtype.itemsize < 2:
            raise NotImplementedError(f"imaginary: no KV cache of {model_runner.kv_cache_dtype}")
        self._requests: list[tuple[slice, torch.Tensor]] = []

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Notes, once for all layers, which queries and which slots belong to each request of the batch."""
        self._requests = []
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return
        lengths = forward_batch.seq_lens.tolist()
        if mode.is_decode():
            queries = [1] * len(lengths)
        elif forward_batch.extend_seq_lens is not None:
            queries = forward_batch.extend_seq_lens.tolist()
        else:
            raise NotImplementedError(f"imaginary: a draft's backend, it cannot do {mode.name}")
        table, start = self.req_to_token_pool.req_to_token, 0
        for row, length, count in zip(forward_batch.req_pool_indices, lengths, queries, strict=True):
            self._requests.append((slice(start, start + count), table[row, :length].long()))
            start += count

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of one layer: ``(tokens, heads * head_dim)`` in, ``(tokens, heads * v_head_dim)`` out."""
        _refuse(layer)
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None:
            pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        window = layer.sliding_window_size
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = q.new_zeros(len(q), layer.tp_q_head_num, layer.v_head_dim)
        for queries, slots in self._requests:
            out[queries] = attend(
                q[queries],
                keys[slots],
                values[slots],
                scale=layer.scaling,
                window=window if window is not None and window >= 0 else None,
                logit_cap=layer.logit_cap,
                sinks=sinks,
            )
        return out.flatten(1)

    # A real accelerator has a kernel for each; here a single token is an extend of one.
    forward_extend = forward_decode


def _refuse(layer: Any) -> None:
    """What the kernel would compute wrongly. Arguments that it does not know are refused by the signature above."""
    if layer.is_cross_attention or layer.attn_type not in (None, AttentionType.DECODER):
        raise NotImplementedError(f"imaginary: layer {layer.layer_id} is not causal self-attention")
    if layer.logit_cap > 0 and layer.logit_capping_method != "tanh":
        raise NotImplementedError(f"imaginary: logit cap by {layer.logit_capping_method}")
    if layer.xai_temperature_len > 0:
        raise NotImplementedError("imaginary: no temperature by length")
