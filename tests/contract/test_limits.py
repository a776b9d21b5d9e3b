"""What is read of stock's backends, against what their creators and classes really do."""

import importlib
import inspect

import pytest
from contract.release import SURFACE, Blank, era

from sglang_draft_ext import catalogue, limits, points

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


def test_flashinfer_drafts_one_branch_with_latent_attention():
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
