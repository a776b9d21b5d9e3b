"""With FlashInfer installed: the maps build stock's own FlashInfer backends, as far as a machine without CUDA allows.

What FlashInfer computes needs a GPU. That its classes are made, which ones and with what, does not; for that, memory is pinned
nowhere, and SGLang is told that FlashInfer can be used.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from types import SimpleNamespace as NS
from typing import Any

import pytest
import torch
from contract.release import Blank, Factory, select, server_args
from contract.stand_ins import ATTENTION, publish, runner_of
from oracle import RandomDraft

from sglang_draft_ext import hooks

pytestmark = pytest.mark.contract
pytest.importorskip("flashinfer", reason="the extra `flashinfer` is not installed")

FLASHINFER, FA3 = f"{ATTENTION}.flashinfer_backend", f"{ATTENTION}.flashattention_backend"
Made = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True, scope="module")
def selecting() -> None:
    hooks.activation.select("the contract tests")


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The release's module of FlashInfer backends, imported as on a CUDA machine."""
    empty = torch.empty

    def pinned_nowhere(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", pinned_nowhere)
    for module in ("sglang.srt.utils", "sglang.srt.utils.common"):
        if _importable(module):
            monkeypatch.setattr(importlib.import_module(module), "is_flashinfer_available", lambda: True)
    importlib.import_module(
        f"{ATTENTION}.triton_backend"
    )  # an import cycle of older releases ends well from here only
    monkeypatch.delitem(sys.modules, FLASHINFER, raising=False)
    module = importlib.import_module(FLASHINFER)
    monkeypatch.setitem(sys.modules, FLASHINFER, module)
    publish(monkeypatch.setattr, FLASHINFER)
    if hasattr(module, "DllmConfig"):
        monkeypatch.setattr(module, "DllmConfig", NS(from_server_args=lambda _: None))
    return module


@pytest.fixture
def made() -> Made:
    """The classes that were constructed, and with what, in order."""
    return []


def watch(monkeypatch: pytest.MonkeyPatch, kind: type[Any], made: Made, *, construct: bool) -> None:
    original = kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
        made.append((kind.__name__, {name: value for name, value in given.items() if name != "self"}))
        if construct:
            original(self, *args, **kwargs)
        else:
            self.attn_backends = []

    monkeypatch.setattr(kind, "__init__", init)


def fa3(monkeypatch: pytest.MonkeyPatch, made: Made) -> None:
    """FlashAttention 3's classes, which need a GPU to be made: that they are asked for, and how, is all that is seen."""
    for name in ("sgl_kernel", "sgl_kernel.flash_attn", "sgl_kernel.utils"):
        if name not in sys.modules and not _importable(name):
            stub = ModuleType(name)
            stub.__getattr__ = lambda attribute: None  # type: ignore[method-assign]
            monkeypatch.setitem(sys.modules, name, stub)
    module = importlib.import_module(FA3)
    for kind in (module.FlashAttentionBackend, module.FlashAttentionMultiStepBackend):
        watch(monkeypatch, kind, made, construct=False)


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def factory(monkeypatch: pytest.MonkeyPatch, *, topk: int, steps: int, **asked: Any) -> Factory:
    """The release's factory of draft backends, for a draft runner on the host."""
    arguments = server_args(**asked)
    runner = runner_of(RandomDraft(0, batch=1, topk=topk, num_steps=steps))
    for name, value in {
        **vars(runner.server_args),
        "use_mla_backend": False,
        "enable_mis": False,
        "multi_item_scoring_delimiter": None,
        "dllm_algorithm": None,
        "enable_piecewise_cuda_graph": False,
        "disable_piecewise_cuda_graph": True,
        "max_running_requests": 4,
    }.items():
        setattr(arguments, name, value)
    runner.model_config.is_multimodal = False
    quantization = NS(resolve_attention_access=lambda *_: NS(kind=None, scale_recipe=None))
    runner.token_to_kv_pool.get_kv_cache_quant_method = lambda: quantization
    made = Factory(monkeypatch, arguments, steps=steps, topk=topk)
    for name, value in vars(runner).items():
        setattr(made.runner, name, value)
    made.runner.server_args = arguments
    made.runner.model_config = Blank(**vars(runner.model_config))
    made.runner.model_config.hf_text_config = Blank()
    module = importlib.import_module(type(made.made).__module__)
    if hasattr(module, "get_global_server_args"):
        monkeypatch.setattr(module, "get_global_server_args", lambda: arguments)
    if hasattr(module, "global_server_args_dict"):
        monkeypatch.setitem(module.global_server_args_dict, "use_mla_backend", False)
    return made


def test_prefill_on_fa3_and_decode_on_flashinfer(
    flashinfer: ModuleType, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The split of upstream's PR 9755, with its numbers, for the draft alone."""
    fa3(monkeypatch, made)
    for kind in (flashinfer.FlashInferMultiStepDraftBackend, flashinfer.FlashInferAttnBackend):
        watch(monkeypatch, kind, made, construct=True)
    chosen = select("fa3", "fa3", "flashinfer")
    draft = factory(monkeypatch, topk=2, steps=5, selection=chosen)
    decode, extend = draft.decode(), draft.extend()

    steps = len(decode.attn_backends)
    (container, first), *rest = made
    assert container == "FlashInferMultiStepDraftBackend"
    assert first == {"model_runner": draft.runner, "topk": 2, "speculative_num_steps": 5}
    assert [name for name, _ in rest] == ["FlashInferAttnBackend"] * steps + ["FlashAttentionBackend"]
    assert steps in (4, 5)
    for _, given in rest[:-1]:
        assert given["model_runner"] is draft.runner
        assert given["skip_prefill"] is True
    (_, given) = rest[-1]
    assert given["model_runner"] is draft.runner
    assert given["skip_prefill"] is False
    assert given.get("fa_impl_ver", 3) == 3
    assert type(decode) is flashinfer.FlashInferMultiStepDraftBackend
    assert type(extend).__name__ == "FlashAttentionBackend"


def test_the_reverse_split(flashinfer: ModuleType, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    fa3(monkeypatch, made)
    draft = factory(monkeypatch, topk=1, steps=3, selection=select("flashinfer", "flashinfer", "fa3"))
    decode, extend = draft.decode(), draft.extend()
    assert (type(decode).__name__, type(extend)) == (
        "FlashAttentionMultiStepBackend",
        flashinfer.FlashInferAttnBackend,
    )
    assert made[0] == (
        "FlashAttentionMultiStepBackend",
        made[0][1] | {"model_runner": draft.runner, "topk": 1, "speculative_num_steps": 3},
    )


def test_both_roles_hold_flashinfers_own_wrappers(
    flashinfer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import flashinfer as library

    draft = factory(monkeypatch, topk=2, steps=4, draft="flashinfer", target=("flashinfer", "flashinfer"))
    decode, extend = draft.decode(), draft.extend()
    for step in decode.attn_backends:
        assert [type(wrapper) for wrapper in step.decode_wrappers] == [
            library.BatchDecodeWithPagedKVCacheWrapper
        ]
    assert [type(wrapper) for wrapper in extend.prefill_wrappers_paged] == [
        library.BatchPrefillWithPagedKVCacheWrapper
    ]
    assert type(decode.attn_backends[0]) is type(extend) is flashinfer.FlashInferAttnBackend
