"""SGLang's other tests of the draft backend's name, under a selection: each sees it, or the launch is refused."""

import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from contract.release import SURFACE, Blank, select

from sglang_draft_ext import checks, hooks, launch
from sglang_draft_ext.errors import SelectionError
from sglang_draft_ext.launch import FIELD, FLAG, Plan
from sglang_draft_ext.selection import ROLES

pytestmark = pytest.mark.contract

SPLIT = "prefill=triton,extend=triton,decode=trtllm_mha"
KV_CACHE_HOOK = "sglang.srt.arg_groups.kv_cache_hook"
CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator"


@pytest.fixture(autouse=True, scope="module")
def selecting():
    hooks.activation.select("the contract tests")


@pytest.fixture
def stock(monkeypatch):
    """stock(module, attribute, name=value…): that function, with *names* of its module replaced."""

    def find(module, attribute, **names):
        if SURFACE.get(module, attribute) is None:
            pytest.skip(f"{attribute}: this release has none")
        found = importlib.import_module(module)
        for name, value in names.items():
            if hasattr(found, name):
                monkeypatch.setattr(found, name, value)
        return getattr(found, attribute)

    return find


def itself(server_args):
    return server_args


def arguments(draft, **fields):
    return Blank(**{FIELD: draft, "speculative_algorithm": "EAGLE", "speculative_eagle_topk": 1, **fields})


def facts(algorithm="EAGLE", page_size=1):
    config = Blank(speculative_algorithm=algorithm, speculative_num_steps=3, page_size=page_size)
    made = checks.Launch(Blank(), config)
    made.draft_uses_mla = made.draft_has_qsa_profile = False
    return made


def test_page_size(stock):
    """Stock sets the page size for the name alone: under a selection the user is told to."""
    constraints = stock("sglang.srt.arg_groups.overrides", "_mla_backend_page_constraints")
    if constraints(arguments("trtllm_mha", page_size=1)):
        assert constraints(arguments("trtllm_mha", page_size=1)) == {"page_size": 64}
    assert constraints(arguments(SPLIT, page_size=1)) == {}
    refused = checks.refusal(facts(page_size=1), "trtllm_mha", "decode", where=FLAG)
    assert "set --page-size to one of" in str(refused)
    assert checks.refusal(facts(page_size=64), "trtllm_mha", "decode", where=FLAG) is None


@pytest.mark.parametrize("algorithm", ["DFLASH", "DSPARK", "FROZEN_KV_MTP"])
def test_algorithms_with_one_backend_see_its_name(algorithm):
    """The tests of DFLASH's KV dtype and layers, and of frozen-KV MTP's names, look at one name."""
    roles = dict.fromkeys(ROLES, "fa4")
    assert launch.flag_value(None, roles) == "fa4"
    plan = Plan(selection=select("fa4", "fa4", "triton"), sources=dict.fromkeys(ROLES, FLAG))
    with pytest.raises(SelectionError, match="drafts on one backend"):
        checks.check(facts(algorithm), plan)


def test_unified_memory(stock):
    handle = stock(
        KV_CACHE_HOOK,
        "handle_unified_memory_pool",
        resolving_view=itself,
        resolved_view=itself,
        attention_backends_of=lambda _: ("triton", "triton"),
        model_config_of=lambda _: Blank(is_hybrid_swa=True),
        mambaish_config=lambda _: None,
        use_mla_backend=lambda _: False,
    )

    def refusal(draft):
        try:
            handle(arguments(draft, enable_unified_memory=True, disaggregation_mode="null", dcp_size=1))
        except AssertionError as error:
            return str(error)
        return ""

    if FIELD not in inspect.getsource(handle):
        assert "only supports --speculative-algorithm DSPARK" in refusal("triton"), "no EAGLE at all"
        return
    assert "runs the draft on" in refusal("torch_native")
    assert refusal("triton") == "", "one name that it knows"
    assert SPLIT in refusal(SPLIT)
    assert "Set --speculative-draft-attention-backend" in refusal(SPLIT)


def test_native_nvfp4(stock):
    if FIELD not in (SURFACE._text(KV_CACHE_HOOK) or ""):
        pytest.skip("NVFP4: this release does not look at the draft's name")
    platform = SimpleNamespace(is_cuda=True, is_sm100=True, is_sm120=False, is_hip=False)
    handle = stock(
        KV_CACHE_HOOK,
        "handle_kv4_compatibility",
        resolving_view=itself,
        resolved_view=itself,
        attention_backends_of=lambda _: ("trtllm_mha", "trtllm_mha"),
        use_mla_backend=lambda _: False,
        get_platform=lambda: platform,
        declare_resolution=lambda *_, **__: None,
    )
    with pytest.raises(
        ValueError, match="requires --speculative-draft-attention-backend=trtllm_mha"
    ) as refused:
        handle(arguments(SPLIT, kv_cache_dtype="nvfp4"))
    assert SPLIT in str(refused.value)


def test_a_fused_draft(stock):
    from sglang.srt.configs.model_config import AttentionArch

    decide = stock(
        CONFIGURATOR,
        "KVCacheConfigurator",
        get_memory=lambda: SimpleNamespace(enable_unified_memory=True),
        get_spec=lambda: arguments(SPLIT),
    )
    if not hasattr(decide, "_fused_draft_decision"):
        pytest.skip("fused draft: this release has none")
    configurator = MagicMock(is_draft_worker=False, is_hybrid_swa=True)
    configurator.spec_algorithm.is_dflash_family.return_value = False
    configurator.spec_aux_config.draft_model_config.attention_arch = AttentionArch.MHA
    assert SPLIT in decide._fused_draft_decision(configurator).declined


@pytest.mark.parametrize("draft", [None, SPLIT])
def test_a_models_default_does_not_replace_a_selection(stock, monkeypatch, draft):
    written = {}
    monkeypatch.setattr("sglang.srt.utils.is_sm100_supported", lambda *_: True, raising=False)
    hook = stock(
        "sglang.srt.arg_groups.kimi_k3_hook",
        "apply_kimi_k3_spec_backend_defaults",
        resolving_view=itself,
        resolved_view=itself,
        get_platform=lambda: SimpleNamespace(is_sm100=True),
        declare_resolution=lambda _args, _source, **fields: written.update(fields),
    )
    given = arguments(draft, speculative_algorithm="DSPARK")
    hook(given)
    written.update({} if getattr(given, FIELD) == draft else {FIELD: getattr(given, FIELD)})
    assert (FIELD in written) == (draft is None)


def test_a_model_that_takes_one_backend_only_refuses_a_selection(stock):
    overrides = stock(
        "sglang.srt.arg_groups.model_overrides.iquest_q1", "_iquest_q1_overrides", resolving_view=itself
    )
    with pytest.raises(ValueError, match="requires FA3 attention for the MTP draft"):
        overrides(arguments(SPLIT), Blank())


def test_the_list_of_checks_is_complete():
    """A module that newly looks at the draft backend's name is to be looked at here, and documented."""
    known = {
        "arg_groups/field_order.py", "arg_groups/fields/spec.py", "arg_groups/kimi_k3_hook.py",
        "arg_groups/kv_cache_hook.py", "arg_groups/model_overrides/iquest_q1.py",
        "arg_groups/model_overrides/minimax_m3.py", "arg_groups/model_overrides/nemotron_h.py",
        "arg_groups/overrides.py", "arg_groups/serving_hook.py", "arg_groups/speculative_hook.py",
        "mem_cache/draft_kv_budget.py", "mem_cache/kv_cache_configurator.py", "mem_cache/kv_cache_dtype.py",
        "model_executor/model_runner.py", "model_executor/model_runner_components/attention_backend_setup.py",
        "model_executor/model_runner_components/spec_aux_hidden_state.py", "models/dflash.py",
        "platforms/interface.py", "server_args.py", "speculative/dflash_worker.py", "speculative/dflash_worker_v2.py",
        "speculative/draft_utils.py", "speculative/draft_worker_common.py", "speculative/frozen_kv_mtp_worker.py",
        "speculative/frozen_kv_mtp_worker_v2.py",
    }  # fmt: skip
    root = Path(SURFACE.path[0], "srt")
    reading = {str(f.relative_to(root)) for f in root.rglob("*.py") if FIELD in f.read_text(errors="replace")}
    assert reading <= known
