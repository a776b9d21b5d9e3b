"""What is read of stock's backends, against what their creators and classes really do."""

import importlib
import inspect
from pathlib import Path

import pytest
from contract.release import SURFACE, Blank, era
from contract.stand_ins import runner_of, stock
from oracle import RandomDraft

from sglang_draft_ext import catalogue, checks, limits, multistep, points
from sglang_draft_ext.errors import BackendError

pytestmark = pytest.mark.contract

NAMES = tuple(catalogue.builders(SURFACE))


def creator(name):
    if era("general registry") == "a registry":
        return importlib.import_module(points.ATTENTION_REGISTRY).ATTENTION_BACKENDS[name]
    kind = importlib.import_module(points.MODEL_RUNNER).ModelRunner

    def create(runner):
        return inspect.unwrap(kind._get_attention_backend_from_str)(runner, name)

    return create


@pytest.mark.parametrize("name", ["trtllm_mla", "trtllm_mha", "tokenspeed_mla", "cutedsl_mla"])
def test_a_creator_refuses_the_kind_of_model_that_was_read(name):
    if name not in NAMES:
        pytest.skip(f"{name}: this release has none")
    wrong = {"required": False, "refused": True}[limits.of_release(SURFACE, name).mla]
    runner = Blank(use_mla_backend=wrong, server_args=Blank())
    with pytest.raises(ValueError, match="MLA models"):
        creator(name)(runner)


@pytest.mark.parametrize("name", ["flashinfer", "triton", "torch_native"])
def test_a_name_that_serves_both_kinds_is_not_limited(name):
    assert limits.of_release(SURFACE, name).mla == "any"


@pytest.mark.parametrize("name", ["flashmla", "cutlass_mla", "nsa", "dsa"])
def test_a_class_for_latent_attention_needs_it(name):
    if name not in NAMES:
        pytest.skip(f"{name}: this release has none")
    assert limits.of_release(SURFACE, name).mla == "required"


def test_flashinfer_drafts_one_branch_with_latent_attention(monkeypatch):
    monkeypatch.setenv(
        "SGLANG_ENABLE_TORCH_COMPILE", "0"
    )  # up to 0.5.3, as server arguments leave it for this module
    limit = limits.of_release(SURFACE, "flashinfer")
    assert (limit.max_topk, limit.max_topk_mla) == (None, 1)
    module = importlib.import_module("sglang.srt.layers.attention.flashinfer_mla_backend")
    with pytest.raises(ValueError, match="topk=1"):
        module.FlashInferMLAMultiStepDraftBackend(Blank(), 2, 3)


@pytest.mark.parametrize(
    ("name", "topk", "pages"),
    [("flashmla", 1, (64,)), ("trtllm_mla", 1, (32, 64)), ("triton", None, None), ("fa3", None, None)],
)
def test_limits_that_only_a_device_would_show(name, topk, pages):
    limit = limits.of_release(SURFACE, name)
    assert (limit.max_topk, limit.page_sizes) == (topk, pages)


def test_trtllm_mha_drafts_one_branch_over_its_pages():
    limit = limits.of_release(SURFACE, "trtllm_mha")
    assert limit.max_topk == 1
    assert {16, 32, 64} <= {*limit.page_sizes}


def test_who_can_verify():
    unable = {name for name in NAMES if not limits.can_verify(SURFACE, name)}
    assert unable >= {"torch_native", "flex_attention"} & {*NAMES}
    assert not unable & {"triton", "flashinfer", "fa3", "trtllm_mla", "trtllm_mha", "flashmla", "aiter"}


def launch_of(**fields):
    """A launch of a draft that attends to everything, with *fields* in its arguments or its draft model's configuration."""
    model = {"sliding_window_size": None, "attention_chunk_size": None, "is_encoder_decoder": False}
    architectures = fields.pop("architectures", ["LlamaForCausalLMEagle"])
    model |= {name: fields.pop(name) for name in [*fields] if name in model}
    config = Blank(
        speculative_algorithm="EAGLE", speculative_num_steps=3, speculative_eagle_topk=1, page_size=16
    )
    made = checks.Launch(Blank(), Blank(**{**vars(config), **fields}))
    made.draft = Blank(hf_config=Blank(architectures=architectures), head_dim=64, **model)
    made.draft_uses_mla = made.draft_has_qsa_profile = False
    return made


@pytest.fixture
def built(monkeypatch):
    """What building torch_native's multi-step backend says in a launch; None when it says nothing."""

    def build(launch):
        draft = RandomDraft(0, batch=1, topk=launch.topk, num_steps=3)
        runner = runner_of(draft, launch.draft.sliding_window_size)
        runner.server_args = launch.config
        runner.model_config.is_encoder_decoder = launch.draft.is_encoder_decoder
        runner.token_to_kv_pool_allocator.page_size = runner.page_size = launch.page_size
        if launch.unified_memory:
            runner.kv_index_translator.is_translating = True
        if SURFACE.get(multistep.SPEC_UTILS, "resolving_view"):
            spec_utils = importlib.import_module(multistep.SPEC_UTILS)
            monkeypatch.setattr(spec_utils, "resolving_view", lambda server_args: server_args)
        try:
            multistep.MultiStepDraftBackend(runner, launch.topk, 3, attention=stock("torch_native"))
        except BackendError as error:
            return str(error)
        return None

    return build


WINDOW = {"speculative_draft_window_size": 512}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, None),
        ({"is_encoder_decoder": True}, "An encoder-decoder model cannot be drafted"),
        (WINDOW, "reads whole pages, which a draft window would cut"),
        ({**WINDOW, "page_size": 1}, None),
        ({**WINDOW, "sliding_window_size": 1024}, None),
        ({"enable_unified_memory": True, "speculative_eagle_topk": 2}, "over translated KV indices"),
        ({"enable_unified_memory": True, "page_size": 1, **WINDOW}, "over translated KV indices"),
    ],
)
def test_what_building_would_refuse_is_refused_before(built, fields, said):
    windows = SURFACE.get(multistep.SPEC_UTILS, multistep.DRAFT_WINDOW)
    if "enable_unified_memory" in fields and not SURFACE.source("sglang.srt.mem_cache.kv_index_translator"):
        pytest.skip("unified memory: this release drafts on none")
    if "speculative_draft_window_size" in fields and not windows:
        if "enable_unified_memory" in fields:
            pytest.skip("a window over unified memory: this release's draft decode has none")
        said = None
    early = checks.refusal(launch_of(**fields), "torch_native", "decode", where="here")
    assert (early and str(early)) == built(launch_of(**fields))
    assert said in str(early) if said else early is None


def test_the_facts_are_where_the_checks_read_them():
    server_args = importlib.import_module(points.SERVER_ARGS).ServerArgs
    config = inspect.getsource(importlib.import_module("sglang.srt.configs.model_config").ModelConfig)
    assert "self.is_encoder_decoder = " in config
    if SURFACE.get(multistep.SPEC_UTILS, multistep.DRAFT_WINDOW):
        assert hasattr(server_args, "speculative_draft_window_size")
        assert "self.sliding_window_size = " in config
        assert "self.attention_chunk_size = " in config
    if SURFACE.source("sglang.srt.mem_cache.kv_index_translator"):
        assert hasattr(server_args, "enable_unified_memory")


def test_the_draft_models_that_give_their_layers_the_flags_window():
    models = Path(SURFACE.path[0], "srt/models")
    reading = [f.stem for f in models.rglob("*.py") if "speculative_draft_window_size" in f.read_text()]
    assert reading in ([], [checks.LLAMA_EAGLE3.rpartition(".")[2]])
    if not SURFACE.get(multistep.SPEC_UTILS, multistep.DRAFT_WINDOW):
        return
    assert launch_of(**WINDOW).windowed
    assert not launch_of(**WINDOW, architectures=["LlamaForCausalLMEagle3"]).windowed
