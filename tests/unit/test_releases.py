"""A release that is not on the list works when its hooks match, with one warning."""

import json

import pytest
from environments import ROOT
from unit.fake_release import python, write

from sglang_draft_ext.releases import TESTED

pytestmark = pytest.mark.unit

LAUNCH = """
    import sglang.srt.server_args, sglang.srt.speculative.draft_utils
    for algorithm in (None, "EAGLE", "DFLASH"):
        sglang.srt.server_args.ServerArgs(speculative_algorithm=algorithm).resolve_once()
"""
ASKS = {"SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND"}
SELECTS = {"SGLANG_DRAFT_EXT_SELECT": "decode=triton"}


def said(folder, version="9.9.9", code=LAUNCH, **environ):
    """What a launch says on stderr."""
    write(folder, {"__init__.py": ("9.9.9", version)})
    result = python(folder, code, **environ)
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.mark.parametrize("asking", [ASKS, SELECTS, {**ASKS, **SELECTS}])
@pytest.mark.parametrize("version", ["9.9.9", "0.5.24.dev1+g0123456", "0.0.0.dev0"])
def test_an_unknown_release_is_warned_of_once(tmp_path, version, asking):
    (line,) = said(tmp_path, version, **asking).splitlines()
    assert f"SGLang {version} is not one of the releases" in line
    assert f"{TESTED[0]} to {TESTED[-1]}" in line


def test_a_program_that_registers_is_warned_once(tmp_path):
    code = """
    import sglang_draft_ext, provider
    sglang_draft_ext.register(provider.BACKEND)
    """
    assert said(tmp_path, code=code + LAUNCH).count("is not one of the releases") == 1


def test_it_is_said_through_logging(tmp_path):
    quiet = """
    import logging
    logging.getLogger("sglang_draft_ext").setLevel(logging.ERROR)
    """
    assert said(tmp_path, code=quiet + LAUNCH, **ASKS) == ""


def test_nothing_is_said_to_a_process_that_asks_for_nothing(tmp_path):
    assert said(tmp_path) == ""


@pytest.mark.parametrize("version", [TESTED[0], TESTED[-1]])
def test_nothing_is_said_on_a_known_release(tmp_path, version):
    assert said(tmp_path, version, **ASKS) == ""


def test_the_lock_has_exactly_the_tested_releases():
    locked = json.loads((ROOT / "scripts" / "releases.json").read_text())["releases"]
    assert tuple(locked) == TESTED
