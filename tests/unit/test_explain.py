"""What `explain` and `backends` say on the fake release; that a launch agrees is a contract test."""

from __future__ import annotations

import json

import pytest
from unit.fake_release import python, write

from sglang_draft_ext.explain import LineError, read, split

pytestmark = pytest.mark.unit

MAIN = """
import sys
from sglang_draft_ext.cli import main
code = main({})
assert not any(name == "sglang" or name.startswith("sglang.") for name in sys.modules)
sys.exit(code)
"""
ASKING = {"SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND,limited=provider:LIMITED"}
FLAG = "--speculative-draft-attention-backend"
EAGLE = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"]
ONE = ["--attention-backend", "triton"]
TREE = ["--speculative-eagle-topk", "2"]
PAIR = ["--prefill-attention-backend", "torch_native", "--decode-attention-backend", "triton"]


@pytest.fixture
def explained(tmp_path):
    folder = write(tmp_path)

    def explain(*line, **environ):
        done = python(folder, MAIN.format(["explain", "--json", *line]), **environ)
        assert done.stdout, done.stderr
        said = json.loads(done.stdout)
        assert done.returncode == (0 if said["error"] is None else 1)
        return said

    return explain


def roles(said):
    return {row["role"]: (row["backend"], row["built_by"]) for row in said["roles"]}


@pytest.mark.parametrize(
    "line",
    [
        ["--a", "1"],
        ["python", "-m", "sglang.launch_server", "--a", "1"],
        ["sglang", "serve", "--a", "1"],
        ["sglang serve --a 1"],
    ],
)
def test_the_program_may_stand_in_front(line):
    assert split(line) == ({}, ["--a", "1"])


def test_variables_may_stand_in_front():
    line = ["env", "X=1", "SGLANG_DRAFT_EXT_SELECT=decode=fa3", "python3", "-m", "x", "--a=b=c"]
    assert split(line) == ({"X": "1", "SGLANG_DRAFT_EXT_SELECT": "decode=fa3"}, ["--a=b=c"])


def test_a_flag_in_short_is_not_guessed():
    with pytest.raises(LineError, match="write the flag in full"):
        read(["--speculative-draft-attention", "fa3"])
    with pytest.raises(LineError, match="expected one argument"):
        read([FLAG])
    assert read(["--model-path", "x", "--tp", "2", "extra"]).config is None


def test_without_a_draft(explained):
    said = explained("--model-path", "x")
    assert said["algorithm"] is None
    assert said["roles"] == []


def test_nothing_asked_follows_the_target(explained):
    said = explained(*EAGLE, *PAIR, "--speculative-attention-mode", "decode")
    assert not said["asks"]
    assert {row["role"]: (row["backend"], row["why"]) for row in said["roles"]} == {
        "prefill": ("torch_native", "default: the target's prefill"),
        "extend": ("triton", "default: the draft's decode"),
        "decode": ("triton", "default: the target's decode"),
    }


def test_what_builds_each_role(explained):
    said = explained(*EAGLE, *PAIR, FLAG, "prefill=triton,extend=accel,decode=wave", **ASKING | {
        "SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND,wave"})  # fmt: skip
    assert roles(said) == {
        "prefill": ("triton", "SGLang's own"),
        "extend": ("accel", "provider:attention"),
        "decode": ("wave", "sglang_draft_ext.multistep, of SGLang's own wave"),
    }
    assert roles(explained(*EAGLE, *PAIR, FLAG, "accel", **ASKING))["decode"] == ("accel", "provider:Steps")


def test_a_target_that_no_flag_gives_is_decided_at_launch(explained):
    said = explained(*EAGLE, SGLANG_DRAFT_EXT_SELECT="decode=triton")
    assert {row["role"]: row["backend"] for row in said["roles"]} == {
        "prefill": None,
        "extend": None,
        "decode": "triton",
    }
    assert "the target's backend, which no flag gives" in said["at_launch"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([*EAGLE, *PAIR, FLAG, "verify=triton"], "'verify' is not a role"),
        ([*EAGLE, *PAIR, FLAG, "decode=nobody"], "'nobody' cannot serve the draft's decode"),
        ([*EAGLE, *PAIR, FLAG, "decode=wave"], "SGLANG_DRAFT_EXT_BACKENDS=wave adds it"),
        (["--speculative-algorithm", "DFLASH", *PAIR, FLAG, "decode=triton"], "has no roles to select"),
        ([*EAGLE, "--attention-backend", "nobody"], "is not an attention backend of this release"),
        (
            [*EAGLE, *ONE, FLAG, "decode=limited", "--speculative-eagle-topk", "4", "--page-size", "16"],
            "at most topk 2",
        ),
        ([*EAGLE, *ONE, FLAG, "decode=limited", "--page-size", "1"], "KV pages of 16, 64"),
        (
            [*EAGLE, *ONE, FLAG, "decode=limited", "--page-size", "16", "--enable-unified-memory", *TREE],
            "over translated KV indices",
        ),
        (
            [*EAGLE, *PAIR, FLAG, "triton", "--speculative-draft-decode-attention-backend", "nobody"],
            "'nobody' cannot serve",
        ),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(explained, line, said):
    found = explained(*line, **ASKING)
    assert said in found["error"]
    assert found["refused_by"] == "sglang-draft-ext, before a model is loaded"


def test_what_sglang_refuses_itself(explained):
    found = explained(*EAGLE, *PAIR, FLAG, "wave")
    assert "SGLANG_DRAFT_EXT_BACKENDS=wave adds it" in found["error"]
    assert found["refused_by"] == "SGLang, after the models are loaded"
    assert not found["asks"]


def test_limits_that_only_the_launch_can_check(explained):
    found = explained(*EAGLE, *ONE, FLAG, "decode=limited", **ASKING)
    assert found["error"] is None
    assert [item.partition(",")[0] for item in found["at_launch"]] == ["the page size", "the topk"]


def test_what_only_the_draft_model_can_say_of_a_draft_window(tmp_path):
    spec_utils = write(tmp_path) / "sglang/srt/speculative/spec_utils.py"
    spec_utils.write_text("def resolve_draft_decode_window(model_runner):\n    pass\n")
    line = [*EAGLE, *ONE, FLAG, "decode=torch_native", "--speculative-eagle-topk", "1", "--page-size", "16"]
    line += ["--speculative-draft-window-size", "512"]
    done = python(
        tmp_path, MAIN.format(["explain", "--json", *line]), SGLANG_DRAFT_EXT_BACKENDS="torch_native"
    )
    (item,) = json.loads(done.stdout)["at_launch"]
    assert item.startswith("whether the draft model has a sliding window of its own (refused if it does not:")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([*EAGLE, "--speculative-draft-decode-attention-backend", "triton"], "unrecognized arguments"),
        ([*EAGLE, FLAG, "decode=triton"], "is not the name of one backend"),
    ],
)
def test_switched_off_sglang_reads_the_line_alone(explained, line, said):
    assert said in explained("SGLANG_DRAFT_EXT_DISABLE=1", "x", *line, **ASKING)["error"]


def test_a_hook_that_is_switched_off(explained):
    found = explained("SGLANG_DRAFT_EXT_DISABLE=draft-maps", "x", *EAGLE, *PAIR, **ASKING)
    assert "with the hooks draft-maps switched off" in found["error"]


def test_the_text(tmp_path):
    line = [*EAGLE, *PAIR, FLAG, "prefill=triton,decode=accel"]
    done = python(write(tmp_path), MAIN.format(["explain", *line]), **ASKING)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "extend triton default: the draft's prefill SGLang's own" in lines
    assert "This launch is not refused." in lines


def test_backends_lists_names_by_role(tmp_path):
    folder = write(tmp_path)
    rows = json.loads(python(folder, MAIN.format(["backends", "--json"])).stdout)
    states = {row["name"]: [row[role]["state"] for role in ("prefill", "extend", "decode")] for row in rows}
    assert states["triton"] == ["native"] * 3
    assert states["wave"] == ["native", "multistep", "multistep"]
    lines = [" ".join(line.split()) for line in python(folder, MAIN.format(["backends"])).stdout.splitlines()]
    assert "wave native multistep multistep" in lines


def test_what_falls_back_is_decided_at_launch_and_what_was_asked_for_never_falls_back(explained):
    target = ["--prefill-attention-backend", "triton", "--decode-attention-backend", "wave"]
    said = explained(*EAGLE, *target, SGLANG_DRAFT_EXT_SELECT="auto")
    (row,) = (row for row in said["roles"] if row["backend"] is None)
    assert row["role"] == "decode"
    assert row["why"].startswith("fallback: the platform's default, because 'wave' cannot serve")
    strict = explained(*EAGLE, *target, SGLANG_DRAFT_EXT_SELECT="auto", SGLANG_DRAFT_EXT_STRICT="1")
    assert "'wave' cannot serve the draft's decode" in strict["error"]
    asked = explained(*EAGLE, *target, FLAG, "prefill=torch_native,decode=triton")
    assert "'torch_native' cannot serve the draft's extend" in asked["error"]
