"""Dense float64 attention over random draft trees: what every draft backend is compared with.

The oracle keeps each branch's keys and values as it hands them out and never looks at the request table, so a
wrong row, length or slot shows as a wrong number.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

DEVICE = os.environ.get("DRAFT_EXT_DEVICE", "cpu")
"""Where drafts run; they are made, and judged, on the host."""


def attend(q: Any, k: Any, v: Any, scale: float, window: int | None = None, sinks: Any = None) -> Any:
    """Attention of one token to all of ``k``, or to its last ``window`` tokens, in float64.

    Args:
        q: ``(heads, head_dim)``.
        k: ``(tokens, kv_heads, head_dim)``; query head ``h`` reads head ``h * kv_heads // heads``.
        v: ``(tokens, kv_heads, v_head_dim)``.
        sinks: ``(heads,)`` logits that take their part of the weights and give nothing.
    """
    k, v = (x.double() if window is None else x[-window:].double() for x in (k, v))
    group = q.shape[0] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = torch.einsum("hd,thd->ht", q.double(), k) * scale
    if sinks is not None:
        logits = torch.cat([logits, sinks.double()[:, None]], -1)
    weights = torch.softmax(logits, -1)[:, : len(k)]
    return torch.einsum("ht,thd->hd", weights, v)


def _windowed(prefix: Any, recent: int, first: int) -> Any:
    return prefix if len(prefix) <= recent + first else torch.cat([prefix[:first], prefix[-recent:]])


class KVPool:
    """The part of a KV pool that attention backends use: one layer's keys and values."""

    start_layer = 0
    page_size = 1

    def __init__(self, k: Any, v: Any) -> None:
        self.k, self.v = k, v

    def get_key_buffer(self, layer_id: int) -> Any:
        return self.k

    def get_value_buffer(self, layer_id: int) -> Any:
        return self.v

    def get_kv_buffer(self, layer_id: int) -> tuple[Any, Any]:
        return self.k, self.v

    def get_v_head_dim(self) -> int:
        return int(self.v.shape[-1])

    def set_kv_buffer(self, layer: Any, loc: Any, k: Any, v: Any, *scales: Any, **more: Any) -> None:
        slots = getattr(loc, "loc", loc)
        self.k[slots] = k.view(-1, *self.k.shape[1:])
        self.v[slots] = v.view(-1, *self.v.shape[1:])


@dataclass
class Step:
    """The input of one draft step, one token per branch, and what it must give."""

    q: Any
    k: Any
    v: Any
    expected: Any


class RandomDraft:
    """A batch in the middle of decoding, at the start of a draft of ``num_steps`` steps on ``topk`` branches.

    Requests sit in random rows of the request table, their tokens in random slots of the pool; the branches'
    slots follow the prefix in the row, each branch on pages of its own when ``page_size`` is above 1. What no
    one may read holds large numbers. With ``mla``, values are the leading part of the one key head, as in a pool of latents.
    With ``draft_window=(recent, first)``, drafting looks at that many of the prefix's last and first tokens only.
    """

    def __init__(
        self,
        seed: int,
        *,
        batch: int,
        topk: int,
        num_steps: int,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 16,
        page_size: int = 1,
        longest: int = 40,
        window: int | None = None,
        sinks: bool = False,
        mla: bool = False,
        draft_window: tuple[int, int] | None = None,
    ) -> None:
        if mla:
            kv_heads, head_dim = 1, 288
        v_head_dim = 256 if mla else head_dim
        rng = torch.Generator().manual_seed(seed)

        def integers(low: int, high: int, *shape: int) -> Any:
            return torch.randint(low, high, shape, generator=rng)

        def key_values(*shape: int) -> tuple[Any, Any]:
            k = torch.randn(*shape, kv_heads, head_dim, generator=rng)
            return k, k[..., :v_head_dim] if mla else torch.randn(k.shape, generator=rng)

        self.topk, self.num_steps, self.page_size, self.mla = topk, num_steps, page_size, mla
        self.sinks = torch.randn(heads, generator=rng) if sinks else None
        self.scale = head_dim**-0.5
        self.layer = SimpleNamespace(
            layer_id=0, tp_q_head_num=heads, tp_k_head_num=kv_heads, tp_v_head_num=kv_heads,
            head_dim=head_dim, qk_head_dim=head_dim, v_head_dim=v_head_dim, scaling=self.scale, logit_cap=0.0,
            logit_capping_method="tanh",
            sliding_window_size=-1, is_cross_attention=False, attn_type=None, k_scale=None, v_scale=None,
            k_scale_float=None, v_scale_float=None, xai_temperature_len=-1, use_irope=False,
        )  # fmt: skip
        self.seq_lens = integers(1, longest + 1, batch)
        pages = -(-(longest + page_size + topk * (num_steps + 2 * page_size)) // page_size)
        requests = batch + 3
        slots = requests * pages * page_size
        order = torch.randperm(requests * pages, generator=rng)
        table = (order[:, None] * page_size + torch.arange(page_size)).view(requests, -1)
        self.req_to_token = table.int()
        self.rows = torch.randperm(requests, generator=rng)[:batch]
        k = torch.full((slots, kv_heads, head_dim), 1e4)
        v = k[..., :v_head_dim] if mla else k.clone()
        branches: list[list[Any]] = []
        prefixes = []
        for row, length in zip(self.rows.tolist(), self.seq_lens.tolist(), strict=True):
            mine = table[row, :length]
            prefix = key_values(length)
            prefixes.append(prefix)
            k[mine], v[mine] = prefix
            partial = length % page_size
            region = -(-(partial + num_steps) // page_size) * page_size
            for branch in range(topk):
                start = length - partial + branch * region
                hole = table[row, start : start + partial]
                k[hole], v[hole] = (x[length - partial :] for x in prefix)
                branches.append(table[row, start + partial : start + partial + num_steps].tolist())
        self.out_cache_loc = torch.tensor(branches).view(-1)
        k = k.to(DEVICE)
        self.pool = KVPool(k, k[..., :v_head_dim] if mla else v.to(DEVICE))

        size = batch * topk
        self.steps: list[Step] = []
        if draft_window:
            prefixes = [tuple(_windowed(x, *draft_window) for x in prefix) for prefix in prefixes]
        drafted = [prefixes[b // topk] for b in range(size)]
        for _ in range(num_steps - 1):
            q = torch.randn(size, heads, head_dim, generator=rng)
            new_k, new_v = key_values(size)
            expected = []
            for b in range(size):
                keys, values = drafted[b]
                drafted[b] = torch.cat([keys, new_k[b : b + 1]]), torch.cat([values, new_v[b : b + 1]])
                expected.append(attend(q[b], *drafted[b], self.scale, window, self.sinks))
            inputs = (x.to(DEVICE) for x in (q.view(size, -1), new_k, new_v))
            self.steps.append(Step(*inputs, torch.stack(expected).view(size, -1)))
        for name in ("seq_lens", "rows", "req_to_token", "out_cache_loc"):
            setattr(self, name, getattr(self, name).to(DEVICE))

    def forward_batch(self, decode_mode: Any, **more: Any) -> Any:
        """The batch as the draft worker hands it to a container; fresh, because drafting changes it."""
        lengths = self.seq_lens.clone()
        return SimpleNamespace(
            forward_mode=decode_mode, batch_size=len(lengths), seq_lens=lengths, seq_lens_cpu=lengths.clone().cpu(),
            seq_lens_sum=int(lengths.sum()), req_pool_indices=self.rows.clone(),
            out_cache_loc=self.out_cache_loc.clone(), positions=lengths.repeat_interleave(self.topk),
            encoder_lens=None,
            spec_info=SimpleNamespace(kv_indptr=None, kv_indices=None, window_kv_indices=None),
            kv_loc_plan=None, kv_loc_cols=None, out_cache_loc_is_physical=False, **more,
        )  # fmt: skip

    def run(self, container: Any, batch: Any) -> list[Any]:
        """Every step's output, on a prepared container, as the draft worker's loop drives it."""
        by_step = (
            self.out_cache_loc.view(-1, self.topk, self.num_steps)
            .permute(2, 0, 1)
            .reshape(self.num_steps, -1)
        )
        outputs = []
        more = {} if self.sinks is None else {"sinks": self.sinks.to(DEVICE)}
        for i, step in enumerate(self.steps):
            batch.out_cache_loc = by_step[i]
            outputs.append(
                container.attn_backends[i].forward(step.q, step.k, step.v, self.layer, batch, **more)
            )
            batch.positions.add_(1)
        return outputs
