"""With CUDA graphs on, the release's own workers capture what can be captured of a draft, and run the rest eagerly."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace as NS
from typing import Any

import pytest
from contract.release import SURFACE
from contract.stand_ins import publish, runner_of, stock
from oracle import RandomDraft

from sglang_draft_ext import hybrid, points
from sglang_draft_ext.extend import DraftExtendBackend
from sglang_draft_ext.multistep import MultiStepDraftBackend

pytestmark = pytest.mark.contract

WORKERS = [
    (module, owner)
    for module, owner in (
        ("eagle_worker", "EAGLEWorker"),
        ("standalone_worker", "StandaloneWorker"),
        ("eagle_worker_v2", "EagleDraftWorker"),
        ("standalone_worker_v2", "StandaloneDraftWorker"),
    )
    if SURFACE.get(f"sglang.srt.speculative.{module}", owner)
]
MULTI_LAYER_WORKERS = [
    (module, owner)
    for module, owner in (
        ("multi_layer_eagle_worker", "MultiLayerEagleWorker"),
        ("multi_layer_eagle_worker_v2", "MultiLayerEagleDraftWorker"),
    )
    if SURFACE.get(f"sglang.srt.speculative.{module}", owner)
]
DECODE = (points.DECODE_GRAPH, "EAGLEDraftCudaGraphRunner", "draft_attn_backend")
EXTEND = (points.EXTEND_GRAPH, "EAGLEDraftExtendCudaGraphRunner", "draft_extend_attn_backend")


@pytest.fixture(autouse=True)
def configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch.setattr, points.HYBRID)


@pytest.fixture
def draft() -> RandomDraft:
    return RandomDraft(0, batch=1, topk=2, num_steps=3)


def containers(draft: RandomDraft, name: str) -> tuple[Any, Any]:
    """The draft decode and the draft extend of a stock backend, as this package makes them out of any."""
    runner = runner_of(draft)
    decode = MultiStepDraftBackend(runner, draft.topk, draft.num_steps, attention=stock(name))
    return decode, DraftExtendBackend(stock(name)(runner))


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Both graph runners, without the device on which they capture; holds what was made of them."""
    made: list[str] = []
    for module, name, _ in (DECODE, EXTEND):
        kind = getattr(importlib.import_module(module), name)
        monkeypatch.setattr(kind, "__init__", lambda self, worker, _name=name, **_: made.append(_name))
    return made


def worker_of(
    monkeypatch: pytest.MonkeyPatch, module: str, owner: str, decode: Any, extend: Any, **more: Any
) -> Any:
    """A worker that has its backends, on a CUDA machine as far as it can tell, about to capture its graphs."""
    loaded = importlib.import_module(f"sglang.srt.speculative.{module}")
    kind = getattr(loaded, owner)
    method = "_capture_cuda_graphs" if hasattr(kind, "_capture_cuda_graphs") else "init_cuda_graphs"
    # What it asks its module for: the module that defines the method, for a worker that inherits it.
    asked = importlib.import_module(getattr(kind, method).__module__)
    graph = NS(cuda_graph_config=NS(decode=NS(backend="full")))
    for name, value in {
        "_is_cpu": False,
        "_is_npu": False,
        "_is_xpu": False,
        "_is_hip": False,
        "current_platform": NS(is_out_of_tree=lambda: False),
        "get_available_gpu_memory": lambda *_, **__: 0.0,
        "log_info_on_rank0": lambda *_: None,
        "check_cuda_graph_backend": lambda *_: False,
        "get_batch_sizes_to_capture": lambda *_: ([1], [1]),
        "get_model": lambda: NS(model_impl="auto"),
        "get_exec": lambda: NS(graph=graph),
    }.items():
        if hasattr(asked, name):
            monkeypatch.setattr(asked, name, value)
    blank = type(f"Blank{owner}", (kind,), {"__getattr__": lambda self, name: None})
    worker = object.__new__(blank)
    for name, value in {
        "server_args": NS(disable_cuda_graph=False, model_impl="auto", **vars(graph)),
        "target_worker": NS(device="cuda"),
        "speculative_num_steps": 3,
        "speculative_algorithm": NS(name="EAGLE"),
        "draft_attn_backend": decode,
        "draft_extend_attn_backend": extend,
        "_specialized_graph_memory_usage": {},
        "_specialized_graph_time_usage": {},
        **more,
    }.items():
        setattr(worker, name, value)
    getattr(worker, method)()
    return worker


@pytest.mark.parametrize(("module", "owner"), WORKERS)
def test_a_draft_that_cannot_be_captured_runs_eagerly(
    module: str,
    owner: str,
    draft: RandomDraft,
    captured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    worker = worker_of(monkeypatch, module, owner, *containers(draft, "torch_native"))
    assert worker.cuda_graph_runner is None
    assert worker.cuda_graph_runner_for_draft_extend is None
    assert captured == []
    assert "TorchNativeAttnBackend cannot be captured in a CUDA graph" in caplog.text


@pytest.mark.parametrize(("module", "owner"), WORKERS)
def test_one_that_can_is_captured(
    module: str, owner: str, draft: RandomDraft, captured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(monkeypatch, module, owner, containers(draft, "triton")[0], None)
    assert type(worker.cuda_graph_runner).__name__ == DECODE[1]
    assert captured == [DECODE[1]]


@pytest.mark.parametrize(("module", "name", "backend"), [DECODE, EXTEND])
def test_stock_backends_are_captured_as_ever(
    module: str, name: str, backend: str, draft: RandomDraft, captured: list[str]
) -> None:
    kind = getattr(importlib.import_module(module), name)
    triton = importlib.import_module("sglang.srt.layers.attention.triton_backend")
    runner = runner_of(draft)
    stocks = (
        triton.TritonMultiStepDraftBackend(runner, draft.topk, draft.num_steps),
        stock("triton")(runner),
    )
    for each in stocks:
        assert type(kind(NS(**{backend: each}))) is kind
    assert captured == [name, name]


@pytest.mark.parametrize(("module", "name", "backend"), [DECODE, EXTEND])
def test_a_backend_passed_in_decides_and_the_signature_stays(
    module: str, name: str, backend: str, draft: RandomDraft, captured: list[str]
) -> None:
    kind = getattr(importlib.import_module(module), name)
    eager, captures = containers(draft, "torch_native")[0], containers(draft, "triton")[0]
    assert kind(NS(**{backend: captures}), **{backend: eager}) is None
    assert type(kind(NS(**{backend: eager}), **{backend: captures})) is kind
    source = SURFACE.get(module, f"{name}.__init__")
    assert tuple(inspect.signature(kind.__new__.__wrapped__).parameters) == source.parameters


@pytest.fixture
def captured_layers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The graph runners of multi-layer EAGLE, as `captured` has the others: all layers' in one, and one layer's."""
    made: list[str] = []
    module = importlib.import_module(points.MULTI_LAYER_GRAPH)
    for name in (
        "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner",
        "MultiLayerEagleDraftExtendCudaGraphRunner",
    ):
        init = lambda self, worker, *_, _name=name: made.append(_name)  # noqa: E731 - one for each class
        monkeypatch.setattr(getattr(module, name), "__init__", init)
    return made


def graphs(monkeypatch: pytest.MonkeyPatch, module: str, owner: str, layers: list[Any], **more: Any) -> Any:
    """The draft extend graphs of a multi-layer worker whose layers attend with *layers*; falsy without any."""
    try:
        importlib.import_module(f"sglang.srt.speculative.{module}")
    except NameError as error:  # the first worker in its last releases
        pytest.skip(f"{owner}: stock's module does not import: {error}")
    runners = [NS(attn_backend=layer) for layer in layers]
    more |= {"draft_extend_attn_backend_list": layers, "draft_runner_list": runners}
    worker = worker_of(monkeypatch, module, owner, None, None, **more)
    if module.endswith("_v2"):
        return worker.cuda_graph_runner_for_draft_extend
    return worker.cuda_graph_runner_for_draft_extend_list


@pytest.mark.parametrize("shape", ["extra", "one extra", "extra extend"])
@pytest.mark.parametrize(("module", "owner"), MULTI_LAYER_WORKERS)
def test_layers_of_which_one_cannot_be_captured_all_run_eagerly(
    module: str,
    owner: str,
    shape: str,
    draft: RandomDraft,
    captured_layers: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    runner = runner_of(draft)
    can, cannot = stock("triton")(runner), DraftExtendBackend(stock("torch_native")(runner))
    layers = {
        "extra": [cannot] * 3,
        "one extra": [can, can, cannot],
        "extra extend": [hybrid.prefill_and_extend(runner, prefill=can, extend=cannot)] * 3,
    }[shape]
    assert not graphs(monkeypatch, module, owner, layers)
    assert captured_layers == []
    assert caplog.text.count("TorchNativeAttnBackend cannot be captured in a CUDA graph") == 1


@pytest.mark.parametrize(("module", "owner"), MULTI_LAYER_WORKERS)
def test_layers_that_can_are_captured_as_ever(
    module: str, owner: str, draft: RandomDraft, captured_layers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(draft)
    can = stock("triton")(runner)
    for layers in (
        [can] * 3,
        [hybrid.prefill_and_extend(runner, prefill=stock("torch_native")(runner), extend=can)] * 3,
    ):
        captured_layers.clear()
        assert graphs(monkeypatch, module, owner, layers)
        assert len(captured_layers) == (1 if module.endswith("_v2") else 3)


@pytest.mark.skipif(
    SURFACE.source(points.MULTI_LAYER_WORKER) is None, reason="this release's worker asks for no graphs then"
)
def test_the_layers_of_a_server_without_graphs_are_not_looked_at(
    draft: RandomDraft, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    off = NS(disable_cuda_graph=True)
    layers = [DraftExtendBackend(stock("torch_native")(runner_of(draft)))] * 3
    module, owner = MULTI_LAYER_WORKERS[0]
    assert not graphs(monkeypatch, module, owner, layers, server_args=off)
    assert "cannot be captured" not in caplog.text
