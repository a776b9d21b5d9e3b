"""The doctor on the fake release: it says what a launch would do, without importing SGLang."""

import json

import pytest
from unit.fake_release import python, write

pytestmark = pytest.mark.unit

DOCTOR = """
import sys
from sglang_draft_ext.cli import main
code = main(["doctor", "--json"])
assert not any(name == "sglang" or name.startswith("sglang.") for name in sys.modules)
sys.exit(code)
"""
ASKING = {"SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND"}
RENAMED = {"srt/speculative/draft_utils.py": ("def _create_backend", "def _make_backend")}
NO_SPLIT = {"srt/layers/attention/hybrid_attn_backend.py": ("def _select_backend", "def _choose")}


def examine(folder, changes=None, **environ):
    result = python(write(folder, changes), DOCTOR, **environ)
    assert result.stdout, result.stderr
    report = json.loads(result.stdout)
    assert result.returncode == (0 if report["ok"] else 1)
    return report


def test_a_good_environment(tmp_path):
    report = examine(tmp_path, **ASKING)
    assert report["ok"]
    (backend,) = report["backends"]
    assert (backend["attention"], backend["decode"]) == ("provider:attention", "provider:Steps")
    assert all(point["era"] and not point["mismatches"] for point in report["points"])


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SGLANG_DRAFT_EXT_BACKENDS": "torch_natve"}, "did you mean 'torch_native'"),
        ({"SGLANG_DRAFT_EXT_BACKENDS": "accel=missing:BACKEND"}, "No module named 'missing'"),
        ({"SGLANG_DRAFT_EXT_BACKENDS": "a,a"}, "is named twice"),
        ({"SGLANG_DRAFT_EXT_SELECT": "verify=triton"}, "is not a role"),
    ],
)
def test_what_a_launch_would_refuse(tmp_path, environ, said):
    report = examine(tmp_path, **environ)
    assert not report["ok"]
    assert said in json.dumps(report)


@pytest.mark.parametrize(
    ("changes", "environ", "good"),
    [
        (RENAMED, {}, True),
        (RENAMED, ASKING, False),
        (NO_SPLIT, ASKING, True),
        (NO_SPLIT, {"SGLANG_DRAFT_EXT_SELECT": "decode=triton"}, False),
    ],
)
def test_a_mismatch_counts_where_it_is_asked_for(tmp_path, changes, environ, good):
    report = examine(tmp_path, changes, **environ)
    assert report["ok"] == good
    assert bool(report["refused"]) == (not good)


def test_unknown_variables_are_reported(tmp_path):
    assert examine(tmp_path, SGLANG_DRAFT_EXT_BACKEND="x")["unknown_variables"] == [
        "SGLANG_DRAFT_EXT_BACKEND"
    ]
