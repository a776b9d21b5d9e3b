"""The backend on random paged batches, against attention as the textbook writes it, in float64."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from imaginary_accelerator.backend import ImaginaryAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode


class Pool:
    """One layer's keys and values, by slot; what nobody may read is large."""

    def __init__(self, slots: int, kv_heads: int, head_dim: int, v_head_dim: int) -> None:
        self.k = torch.full((slots, kv_heads, head_dim), 1e4)
        self.v = torch.full((slots, kv_heads, v_head_dim), 1e4)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.k

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.v

    def set_kv_buffer(self, layer: Any, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k[slots], self.v[slots] = k.view(-1, *self.k.shape[1:]), v.view(-1, *self.v.shape[1:])


class Case:
    """A batch of requests of random lengths, on random pages of the pool, and what a forward pass must give."""

    def __init__(self, seed: int, *, decode: bool, **layer: Any) -> None:
        choose, self.rng = random.Random(seed), torch.Generator().manual_seed(seed)
        self.kv_heads, self.group = choose.choice([1, 2, 3]), choose.choice([1, 2, 4])
        self.heads, head_dim, v_head_dim = self.kv_heads * self.group, 8, choose.choice([8, 4])
        page, batch = choose.choice([1, 4, 16]), choose.randint(1, 4)
        queries = [1 if decode else choose.randint(1, 9) for _ in range(batch)]
        lengths = [count + choose.randint(0, 30) for count in queries]
        self.layer = SimpleNamespace(
            layer_id=0, tp_q_head_num=self.heads, qk_head_dim=head_dim, v_head_dim=v_head_dim,
            scaling=head_dim**-0.5, logit_cap=0.0, logit_capping_method="tanh", sliding_window_size=-1,
            xai_temperature_len=-1, is_cross_attention=False, attn_type=None,
        )  # fmt: skip
        self.layer.__dict__.update(layer)

        pages = -(-max(lengths) // page)
        order = torch.randperm((batch + 2) * pages, generator=self.rng)
        table = (order[:, None] * page + torch.arange(page)).view(batch + 2, -1)
        rows = torch.randperm(batch + 2, generator=self.rng)[:batch]
        self.pool = Pool(table.numel(), self.kv_heads, head_dim, v_head_dim)
        self.runner = SimpleNamespace(
            req_to_token_pool=SimpleNamespace(req_to_token=table.int()),
            token_to_kv_pool=self.pool,
            kv_cache_dtype=torch.float32,
        )
        self.q = self._random(sum(queries), self.heads, head_dim)
        news, slots, self.requests, start = [], [], [], 0
        for row, length, count in zip(rows, lengths, queries, strict=True):
            k, v = (
                self._random(length, self.kv_heads, head_dim),
                self._random(length, self.kv_heads, v_head_dim),
            )
            cached = table[row, : length - count]
            self.pool.k[cached], self.pool.v[cached] = k[: length - count], v[: length - count]
            slots.append(table[row, length - count : length])
            news.append((k[length - count :], v[length - count :]))
            self.requests.append((self.q[start : start + count], k, v))
            start += count
        self.k, self.v = (torch.cat(part) for part in zip(*news, strict=True))
        self.batch = SimpleNamespace(
            forward_mode=ForwardMode.DECODE if decode else ForwardMode.EXTEND,
            req_pool_indices=rows, seq_lens=torch.tensor(lengths), out_cache_loc=torch.cat(slots),
            extend_seq_lens=None if decode else torch.tensor(queries, dtype=torch.int32),
        )  # fmt: skip

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.rng)

    def run(self, **more: Any) -> torch.Tensor:
        backend = ImaginaryAttnBackend(self.runner)
        backend.init_forward_metadata(self.batch)
        return backend.forward(self.q.flatten(1), self.k, self.v, self.layer, self.batch, **more)

    def expected(self, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """One query, one head and one token at a time."""
        rows = []
        for q, k, v in self.requests:
            for i in range(len(q)):
                own = len(k) - len(q) + i
                window = self.layer.sliding_window_size
                seen = range(max(0, own - window) if window >= 0 else 0, own + 1)
                heads = []
                for head in range(self.heads):
                    kv = head // self.group
                    scores = torch.stack([q[i, head].double() @ k[at, kv].double() for at in seen])
                    scores = scores * self.layer.scaling
                    if self.layer.logit_cap:
                        scores = self.layer.logit_cap * (scores / self.layer.logit_cap).tanh()
                    weights = scores.exp()
                    total = weights.sum() + (0 if sinks is None else sinks[head].double().exp())
                    heads.append(
                        sum(w * v[at, kv].double() for w, at in zip(weights, seen, strict=True)) / total
                    )
                rows.append(torch.cat(heads))
        return torch.stack(rows)


modes = pytest.mark.parametrize("decode", [True, False], ids=["decode", "extend"])
seeds = pytest.mark.parametrize("seed", range(8))
LAYERS = {
    "full": {},
    "window": {"sliding_window_size": 5},
    "own token only": {"sliding_window_size": 0},
    "cap": {"logit_cap": 0.7},
}


@modes
@seeds
@pytest.mark.parametrize("layer", LAYERS)
def test_matches_the_textbook(seed: int, decode: bool, layer: str) -> None:
    case = Case(seed, decode=decode, **LAYERS[layer])
    torch.testing.assert_close(case.run().double(), case.expected(), atol=2e-5, rtol=1e-4)


@modes
@seeds
def test_sinks(seed: int, decode: bool) -> None:
    case = Case(seed, decode=decode)
    sinks = torch.randn(case.heads, generator=case.rng)
    torch.testing.assert_close(case.run(sinks=sinks).double(), case.expected(sinks), atol=2e-5, rtol=1e-4)


@modes
def test_reads_what_is_in_the_cache_when_told_to_write_nothing(decode: bool) -> None:
    case = Case(0, decode=decode)
    case.pool.set_kv_buffer(case.layer, case.batch.out_cache_loc, case.k, case.v)
    case.k, case.v = torch.full_like(case.k, 1e4), torch.full_like(case.v, 1e4)
    torch.testing.assert_close(case.run(save_kv_cache=False).double(), case.expected(), atol=2e-5, rtol=1e-4)


def test_an_idle_rank_computes_nothing() -> None:
    case = Case(0, decode=True)
    case.batch.forward_mode = ForwardMode.IDLE
    case.q, case.k, case.v = case.q[:0], case.k[:0], case.v[:0]
    assert case.run().shape == (0, case.heads * case.layer.v_head_dim)


@pytest.mark.parametrize(
    "layer",
    [
        {"is_cross_attention": True},
        {"attn_type": "encoder_only"},
        {"logit_cap": 1.0, "logit_capping_method": "sigmoid"},
        {"xai_temperature_len": 8},
    ],
    ids=", ".join,
)
def test_refuses_a_layer_that_it_would_compute_wrongly(layer: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="imaginary"):
        Case(0, decode=True, **layer).run()


def test_refuses_arguments_that_it_does_not_know() -> None:
    case = Case(0, decode=True)
    with pytest.raises(TypeError, match="q_rope"):
        case.run(q_rope=case.q)


def test_refuses_a_tree() -> None:
    case = Case(0, decode=True)
    case.batch.forward_mode = ForwardMode.TARGET_VERIFY
    with pytest.raises(NotImplementedError, match="TARGET_VERIFY"):
        case.run()


@pytest.mark.parametrize("change", ["pool", "dtype"])
def test_refuses_a_cache_that_it_cannot_read(change: str) -> None:
    runner = Case(0, decode=True).runner
    if change == "pool":
        runner.token_to_kv_pool.full_to_swa_index_mapping = None
    else:
        runner.kv_cache_dtype = torch.float8_e5m2
    with pytest.raises(NotImplementedError, match="imaginary"):
        ImaginaryAttnBackend(runner)
