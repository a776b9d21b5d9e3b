"""Every patch, on the modules that the release under test really has."""

import importlib
import itertools
import json
import sys
from types import SimpleNamespace

import pytest
import sglang.srt.server_args as stock_arguments
import wrapt
from contract.provider import Steps
from contract.release import HAS_DRAFT_FLAG, SURFACE, Blank, Factory, era, map_names, select, server_args
from environments import ROOT

from sglang_draft_ext import hooks, points
from sglang_draft_ext.extend import DraftExtendBackend
from sglang_draft_ext.launch import FIELD, ROLE_FLAGS
from sglang_draft_ext.releases import TESTED

pytestmark = pytest.mark.contract

DECODE = map_names("decode")
EXTEND = map_names("extend")


@pytest.fixture(autouse=True, scope="module")
def selecting():
    hooks.activation.select("the contract tests")


def stock(point, era_without=()):
    """Skip where the release has nothing there to patch, which `test_every_hook_matches` has established."""
    found = era(point)
    if found.startswith(("no ", "none")) or found in era_without:
        pytest.skip(f"{point}: {found}")
    return found


def test_every_hook_matches():
    assert points.verify(SURFACE, ("backends", "selection"), algorithm="DFLASH") == []


def test_plugins_that_wrap_the_same_places_keep_this_package(monkeypatch):
    """SGLang's plugins wrap by dotted path, after this package: both must be reached, everywhere."""
    if SURFACE.source("sglang.srt.plugins.hook_registry") is None:
        pytest.skip("no plugins: this release has none")
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for module in (points.SPECULATIVE_HOOK, points.DRAFT_UTILS):
        if SURFACE.source(module):
            importlib.import_module(module)
    wrapped = [hook for hook in hooks.activation.applied if hook.wrapper]
    assert len(wrapped) >= 6
    for hook in wrapped:
        module = importlib.import_module(hook.module)
        owner, _, name = hook.attribute.rpartition(".")
        parent = getattr(module, owner) if owner else module
        # Put back afterwards, with the copies in modules that other tests have imported.
        holders = [found for key, found in list(sys.modules.items()) if key.startswith("sglang.")]
        for holder in [parent, *(h for h in holders if vars(h).get(name) is vars(parent)[name])]:
            monkeypatch.setattr(holder, name, vars(parent)[name])
        HookRegistry._apply_target(
            f"{hook.module}.{hook.attribute}",
            [(HookType.AROUND, lambda stock, *a, **k: stock(*a, **k), None)],
        )
        found = vars(parent)[name]
        found = getattr(found, "__func__", found)
        assert not isinstance(found, wrapt.FunctionWrapper), "the plugin's wrapper is outermost"
        assert isinstance(found.__wrapped__, (wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper)), hook.target


def test_every_hook_was_found_on_a_tested_release():
    assert SURFACE.version in TESTED, "on any other there is a warning"


def test_every_hook_is_in_the_era_that_is_recorded():
    changes = json.loads((ROOT / "scripts" / "eras.json").read_text())
    begun = [eras for first, eras in changes.items() if TESTED.index(first) <= TESTED.index(SURFACE.version)]
    recorded = {point: name for eras in begun for point, name in eras.items()}
    assert {point.name: point.era(SURFACE).name for point in points.POINTS} == recorded


def test_the_choices_hold_the_extra_names_once():
    choices = stock_arguments.ATTENTION_BACKEND_CHOICES
    assert choices.count("contract") == 1
    assert choices.count("torch_native") == 1


def test_the_parser_offers_the_extra_names_and_the_role_flags():
    import argparse

    parser = argparse.ArgumentParser()
    stock_arguments.ServerArgs.add_cli_args(parser)
    for flag in ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"):
        (action,) = (action for action in parser._actions if flag in action.option_strings)
        assert "contract" in action.choices
    text = parser.format_help()
    for flag in (*ROLE_FLAGS.values(), "--speculative-draft-attention-backend"):
        assert flag in text


def test_the_general_registry_builds_the_extra_backend():
    runner = SimpleNamespace(use_mla_backend=False, is_draft_worker=False, server_args=server_args())
    if era("general registry") == "a registry":
        registry = importlib.import_module(points.ATTENTION_REGISTRY).ATTENTION_BACKENDS
        assert registry["contract"](runner).given is runner
        assert registry["torch_native"].__module__.startswith("sglang.")
    else:
        runner = object.__new__(importlib.import_module(points.MODEL_RUNNER).ModelRunner)
        runner.use_mla_backend = runner.is_draft_worker = False
        assert runner._get_attention_backend_from_str("contract").given is runner


@pytest.mark.parametrize("name", ["torch_native", "contract", "triton"])
@pytest.mark.parametrize("draft", [True, False])
def test_the_draft_runners_own_backend_serves_extend(monkeypatch, name, draft):
    """Up to 0.5.13 it re-reads accepted tokens, in a forward mode that ordinary backends do not know."""
    stock("draft runner's extend")
    backend = SimpleNamespace()
    runner = object.__new__(importlib.import_module(points.MODEL_RUNNER).ModelRunner)
    runner.use_mla_backend, runner.is_draft_worker, runner.device = False, draft, "cpu"
    runner.server_args = Blank(attention_backend=name)
    if era("general registry") == "a registry":
        registry = importlib.import_module(points.ATTENTION_REGISTRY)
        monkeypatch.setitem(registry.ATTENTION_BACKENDS, name, lambda _runner: backend)
        for module in (registry, importlib.import_module(points.MODEL_RUNNER)):
            # What it puts around hybrid models' backends looks at a model, of which there is none here.
            monkeypatch.setattr(module, "attn_backend_wrapper", lambda _runner, built: built, raising=False)
    else:
        runner.model_config = Blank()
    if name == "triton":
        triton = importlib.import_module("sglang.srt.layers.attention.triton_backend")
        monkeypatch.setattr(triton, "TritonAttnBackend", lambda _runner: backend)
    own = runner._get_attention_backend_from_str(name)
    # "contract" brings a multi-step backend, and so knows of drafts.
    extends = draft and name == "torch_native"
    assert isinstance(own, DraftExtendBackend) == extends


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_both_maps_build_the_extra_backend(monkeypatch, mode):
    arguments = server_args(draft="contract", mode=mode, target=("contract", "contract"))
    factory = Factory(monkeypatch, arguments, steps=4, topk=2)
    decode, extend = factory.decode(), factory.extend()
    assert type(decode) is Steps
    assert decode.given == (factory.runner, 2, 4)
    assert extend.given is factory.runner
    if hasattr(type(extend), "prefill_attention_backend_str") and era("draft maps") == "factory of pairs":
        for backend in (decode, extend, *decode.attn_backends):
            assert (backend.prefill_attention_backend_str, backend.decode_attention_backend_str) == (
                "contract",
            ) * 2


def test_an_unknown_name_still_gets_stocks_error(monkeypatch):
    factory = Factory(monkeypatch, server_args(draft="nobody", target=("nobody", "nobody")))
    with pytest.raises(ValueError, match="EAGLE is not supported in decode attention backend nobody"):
        factory.decode()
    with pytest.raises(ValueError, match="EAGLE is not supported in attention backend nobody"):
        factory.extend()


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_every_pair_of_stock_names_reaches_exactly_its_two_creators(monkeypatch, mode, steps):
    def created(arguments):
        factory = Factory(monkeypatch, arguments, steps=steps)
        factory.mark_creators()
        decode, extend = factory.decode(), factory.extend()
        return decode and decode.creator, extend and extend.creator

    alone = {
        name: created(server_args(draft=name, mode=mode, target=(name, name)))
        for name in set(DECODE) & set(EXTEND)
    }
    assert len(alone) >= 7
    for decode, extend in itertools.product(alone, repeat=2):
        selection = select(extend, extend, decode)
        assert created(server_args(selection=selection, mode=mode)) == (alone[decode][0], alone[extend][1]), (
            selection
        )


def test_a_selection_of_extra_names_reaches_both_maps(monkeypatch):
    factory = Factory(monkeypatch, server_args(selection=select("triton", "triton", "contract")))
    factory.mark_creators()
    assert type(factory.decode()) is Steps
    assert "triton" in factory.extend().creator
    factory = Factory(monkeypatch, server_args(selection=select("contract", "contract", "triton")))
    factory.mark_creators()
    assert "triton" in factory.decode().creator
    assert factory.extend().given is factory.runner


def test_a_selected_name_that_no_map_holds_gets_stocks_error(monkeypatch):
    factory = Factory(monkeypatch, server_args(selection=select("triton", "nobody", "nobody")))
    with pytest.raises(ValueError, match="EAGLE is not supported in decode attention backend nobody"):
        factory.decode()


def test_the_draft_runner_gets_the_selections_pair():
    selection = select("flashinfer", "flashinfer", "triton")
    draft, target = (server_args(selection=selection, target=("fa3", "fa3")) for _ in range(2))
    if era("draft runner's own backend") == "a method of ModelRunner":
        kind = importlib.import_module(points.MODEL_RUNNER).ModelRunner
        runner = object.__new__(kind)
        runner.server_args, runner.is_draft_worker = draft, True
        runner._get_attention_backend_from_str = lambda name, **_: f"built {name}"
        assert runner._get_attention_backend() == "built flashinfer"
        assert (runner.prefill_attention_backend_str, runner.decode_attention_backend_str) == (
            "flashinfer",
            "triton",
        )
        return
    setup = importlib.import_module(points.BACKEND_SETUP)
    public = era("draft runner's own backend") == "a public resolver"
    if public:
        resolve = importlib.import_module(points.MODEL_RUNNER).resolve_attention_backend_strs
        assert resolve is setup.resolve_attention_backend_strs
        runner = SimpleNamespace(
            server_args=draft, is_draft_worker=True, draft_attention_backend=str(selection)
        )
        names = resolve(model_runner=runner)
    else:
        names = setup._resolve_attention_backend_strs(server_args=draft, is_draft_worker=True)
    assert (names.prefill, names.decode, names.is_draft_override) == ("flashinfer", "triton", True)
    if not public:
        names = setup._resolve_attention_backend_strs(server_args=target, is_draft_worker=False)
        assert (names.prefill, names.decode) == ("fa3", "fa3")


def test_a_hybrid_tells_the_prompt_from_accepted_tokens(monkeypatch):
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from sglang_draft_ext import hybrid

    module = importlib.import_module(points.HYBRID)
    arguments = server_args()
    for name in ("get_spec", "get_exec"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lambda: arguments)
    parts = {name: SimpleNamespace(name=name, needs_cpu_seq_lens=False) for name in ("prefill", "extend")}
    runner = SimpleNamespace(
        server_args=arguments,
        kv_cache_dtype=None,
        token_to_kv_pool=None,
        req_to_token_pool=None,
        kv_index_translator=None,
        model_config=SimpleNamespace(context_len=8),
    )
    both = hybrid.prefill_and_extend(runner, **parts)
    assert isinstance(both, module.HybridAttnBackend)
    assert (
        hybrid.prefill_and_extend(runner, prefill=both, extend=parts["extend"]).prefill_backend
        is parts["prefill"]
    )
    chosen = {mode.name: both._select_backend(mode).name for mode in ForwardMode}
    assert {mode for mode, name in chosen.items() if name == "extend"} == {
        mode.name for mode in ForwardMode if mode.name.startswith("DRAFT_EXTEND")
    }


@pytest.mark.parametrize("asked", ["contract", "torch_native"])
def test_dflash_keeps_the_name_at_argument_time(asked):
    stock("draft resolver at argument time")
    resolve = getattr(importlib.import_module(points.SPECULATIVE_HOOK), points.RESOLVE_DFLASH)
    named = server_args(draft=asked)
    resolve(named)
    assert _draft_of(named) == asked
    inherited = server_args(target=(asked, "triton"))
    resolve(inherited)
    assert _draft_of(inherited) == asked


def test_dflash_at_argument_time_leaves_other_names_to_stock():
    stock("draft resolver at argument time")
    resolve = getattr(importlib.import_module(points.SPECULATIVE_HOOK), points.RESOLVE_DFLASH)
    unknown, alone = server_args(draft="wave"), server_args(draft="wave")
    resolve(unknown)
    resolve.__wrapped__(alone)
    assert _draft_of(unknown) == _draft_of(alone)


def _draft_of(arguments):
    """The draft backend that was decided, where the release keeps decisions."""
    for _source, fields in reversed(getattr(arguments, "_resolved_overrides", None) or ()):
        if FIELD in fields:
            return fields[FIELD]
    return getattr(arguments, FIELD)


@pytest.mark.parametrize(
    ("asked", "expected"), [("contract", "contract"), ("torch_native", "torch_native"), ("wave", None)]
)
def test_dflash_keeps_the_name_at_worker_time(monkeypatch, asked, expected):
    found = stock("draft resolver at worker time")
    if found.startswith("a tuple in"):
        kind = found.removeprefix("a tuple in ").partition(".")[0]
        module = importlib.import_module(
            points.DFLASH_WORKER_V2 if kind.endswith("V2") else points.DFLASH_WORKER
        )
        constants = getattr(module, kind).__init__.__code__.co_consts
        (names,) = (c for c in constants if isinstance(c, tuple) and "flashinfer" in c)
        assert (asked in names) == (expected is not None)
        return
    module = importlib.import_module(points.DRAFT_WORKER_COMMON)
    arguments = server_args(draft=asked)
    for name, published in {
        "get_spec": lambda: arguments,
        "attention_backends": arguments.get_attention_backends,
    }.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, published)
    resolver = getattr(module, "resolve_draft_worker_attention_backend", None) or (
        module._resolve_draft_attention_backend_fallback
    )
    parameters = importlib.import_module("inspect").signature(resolver).parameters
    given = {"algo_label": "DFLASH", "server_args": arguments, "draft_server_args": arguments}
    resolved = resolver(**{name: value for name, value in given.items() if name in parameters})
    assert resolved == expected or (expected is None and resolved in ("flashinfer", "triton"))


def test_the_draft_flag_is_there():
    assert hasattr(stock_arguments.ServerArgs, FIELD) == HAS_DRAFT_FLAG
