"""`explain` says what the real parser and the real wrappers do with the same line."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import sglang.srt.server_args as stock_arguments
from contract.release import HAS_DRAFT_FLAG, SURFACE
from environments import ROOT

from sglang_draft_ext import checks
from sglang_draft_ext.errors import DraftExtError
from sglang_draft_ext.explain import AFTER, has_draft_flag
from sglang_draft_ext.launch import FIELD, FLAG, ROLE_FLAGS
from sglang_draft_ext.patches import server_args as wrappers
from sglang_draft_ext.selection import ROLES

pytestmark = pytest.mark.contract

DRAFT = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", "--page-size", "1"]
TARGET = ["--prefill-attention-backend", "flashinfer", "--decode-attention-backend", "triton"]
# The target's flags are stock's own, and so are the words with which they are refused.
STOCKS_WORDS = {"'flashinfr' is not an attention backend of this release": "invalid choice: 'flashinfr'"}
LINES = {
    "no draft": [],
    "stock alone": [*DRAFT, *TARGET],
    "one stock name": [*DRAFT, *TARGET, FLAG, "triton"],
    "one extra name": [*DRAFT, *TARGET, FLAG, "contract"],
    "split": [*DRAFT, *TARGET, FLAG, "prefill=triton,decode=flashinfer"],
    "with =": [*DRAFT, *TARGET, f"{FLAG}=prefill=triton,decode=flashinfer"],
    "extra decode": [*DRAFT, *TARGET, ROLE_FLAGS["decode"], "contract"],
    "a role flag over the draft flag": [*DRAFT, *TARGET, FLAG, "triton", ROLE_FLAGS["extend"], "flashinfer"],
    "one target backend": [*DRAFT, "--attention-backend", "triton", ROLE_FLAGS["decode"], "flashinfer"],
    "unknown role": [*DRAFT, *TARGET, FLAG, "verify=triton"],
    "role twice": [*DRAFT, *TARGET, FLAG, "decode=triton,decode=triton"],
    "misspelt": [*DRAFT, *TARGET, ROLE_FLAGS["decode"], "flashinfr"],
    "cannot decode": [*DRAFT, *TARGET, ROLE_FLAGS["decode"], "flex_attention"],
    "one step has no decode": [*DRAFT[:-4], "--speculative-num-steps", "1", *TARGET, ROLE_FLAGS["prefill"], "contract"],
    "unknown target": [*DRAFT, "--attention-backend", "flashinfr"],
}  # fmt: skip
if SURFACE.get("sglang.srt.speculative.spec_info", "SpeculativeAlgorithm.DFLASH"):
    LINES["no roles"] = [
        "--speculative-algorithm",
        "DFLASH",
        *TARGET,
        FLAG,
        "prefill=triton,decode=flashinfer",
    ]


def explained(line):
    done = subprocess.run(
        [sys.executable, "-m", "sglang_draft_ext", "explain", "--json", *line],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"), *sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    assert done.returncode == (0 if said["error"] is None else 1)
    return said


def launched(line, monkeypatch, capsys):
    """What the release's parser and our wrappers make of *line*: the refusal, or the plan (None: stock decides)."""
    monkeypatch.setattr(wrappers, "resolved", lambda server_args: server_args)
    # There is no model. What it says is a note to `explain`, never an answer.
    monkeypatch.setattr(checks.Launch, "draft_uses_mla", False)
    monkeypatch.setattr(checks.Launch, "draft_has_qsa_profile", False)
    parser = argparse.ArgumentParser()
    stock_arguments.ServerArgs.add_cli_args(parser)
    made = []

    def construct(namespace):
        values = vars(namespace)
        if not HAS_DRAFT_FLAG:
            values.pop(FIELD, None)
        made.append(
            SimpleNamespace(model_path="some", **{k: v for k, v in values.items() if k != "model_path"})
        )
        wrappers.resolution(lambda: None, made[0], (), {})

    try:
        namespace = parser.parse_args(["--model-path", "some", *line])
        wrappers.from_cli_args(construct, stock_arguments.ServerArgs, (namespace,), {})
    except SystemExit:
        return capsys.readouterr().err, None
    except DraftExtError as error:
        return error.problem, None
    return None, made[0]._draft_ext.plan


def test_the_flag_is_seen_in_the_source():
    assert has_draft_flag(SURFACE) == HAS_DRAFT_FLAG == hasattr(stock_arguments.ServerArgs, FIELD)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_explain_and_launch_agree(line, monkeypatch, capsys):
    said = explained(line)
    refusal, plan = launched(line, monkeypatch, capsys)
    if said["error"] and said["refused_by"] != AFTER:
        problem = said["error"].partition(". Asked in")[0]
        assert (STOCKS_WORDS.get(problem) or problem) in refusal
        return
    assert refusal is None
    if plan is not None:
        assert [(row["role"], row["backend"], row["why"]) for row in said["roles"]] == [
            (role, getattr(plan.selection, role), plan.sources[role]) for role in ROLES
        ]
