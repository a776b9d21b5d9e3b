"""The variables that switch single hooks off, and that log what happens to each; and the log of imported providers."""

from __future__ import annotations

import pytest
from unit.fake_release import python, write

from sglang_draft_ext.errors import SettingsError
from sglang_draft_ext.points import POINTS, named, needed
from sglang_draft_ext.settings import parse_disabled

pytestmark = pytest.mark.unit

PARSE = """
from sglang.srt.server_args import prepare_server_args
import sglang.srt.speculative.draft_utils
prepare_server_args([])
"""
ASKING = {"SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND"}


@pytest.mark.parametrize("text", ["", " ", "0", "false", "1", "ALL", " true "])
def test_what_switches_no_single_hook_off(text):
    assert parse_disabled(text) == ()


def test_single_hooks_are_named_as_they_are_called():
    assert parse_disabled(" draft-maps, ranks,,ranks ") == ("draft-maps", "ranks")
    assert {point.name for point in named(("draft-maps", "ranks"))} == {"draft maps", "ranks"}
    assert len({point.slug for point in POINTS}) == len(POINTS)


def test_an_unknown_hook_is_refused_with_the_nearest():
    with pytest.raises(SettingsError, match=r"did you mean 'draft-maps'.*SGLANG_DRAFT_EXT_DISABLE"):
        named(("draft-map",))


def test_an_unknown_hook_is_refused_even_if_nothing_else_is_asked(tmp_path):
    done = python(write(tmp_path), "import sglang", SGLANG_DRAFT_EXT_DISABLE="no-such-hook")
    assert "SettingsError: 'no-such-hook' is not a hook" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("point", sorted(point.slug for point in needed(("backends",))))
def test_what_needs_a_hook_that_is_switched_off_is_refused(point, tmp_path):
    done = python(write(tmp_path), PARSE, **ASKING, SGLANG_DRAFT_EXT_DISABLE=point)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert (
        f"HookError: SGLang cannot be given draft backend accel with the hooks {point} switched off" in last
    )
    assert "SGLANG_DRAFT_EXT_BACKENDS, item 1" in last
    assert "take them out of SGLANG_DRAFT_EXT_DISABLE" in last


def test_a_hook_that_nothing_asked_for_needs_can_be_switched_off(tmp_path):
    code = (
        PARSE
        + "\nfrom sglang_draft_ext import hooks\nprint({hook.attribute for hook in hooks.activation.applied})"
    )
    done = python(write(tmp_path), code, **ASKING, SGLANG_DRAFT_EXT_DISABLE="hybrid-backend,engine-keywords")
    assert done.returncode == 0, done.stderr
    assert "DraftBackendFactory._create_backend" in done.stdout
    assert "Engine.__init__" not in done.stdout


def test_a_watch_that_is_always_kept_can_be_switched_off(tmp_path):
    code = (
        PARSE
        + "\nfrom sglang_draft_ext import hooks\nprint({hook.attribute for hook in hooks.activation.applied})"
    )
    assert "ServerArgs.add_cli_args" in python(write(tmp_path), code).stdout
    assert (
        "ServerArgs.add_cli_args"
        not in python(write(tmp_path), code, SGLANG_DRAFT_EXT_DISABLE="server-arguments").stdout
    )


def test_debug_says_what_became_of_each_hook(tmp_path):
    done = python(
        write(tmp_path),
        PARSE + "import logging; logging.basicConfig(level=logging.DEBUG, force=True)\n"
        "import sglang.srt.entrypoints.engine, sglang.srt.layers.attention.hybrid_attn_backend\n",
        **ASKING,
        SGLANG_DRAFT_EXT_DEBUG="1",
        SGLANG_DRAFT_EXT_DISABLE="hybrid-backend",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    applied = "applied draft-maps to sglang.srt.speculative.draft_utils:DraftBackendFactory._create_backend"
    skipped = "skipped hybrid-backend in sglang.srt.layers.attention.hybrid_attn_backend: switched off by"
    for said in (applied, skipped):
        (line,) = (line for line in lines if said in line)
        assert line.startswith("sglang-draft-ext, process ")
    assert len(lines) == len({*lines}), "each is said once"


def test_debug_says_why_nothing_is_patched(tmp_path):
    done = python(write(tmp_path), PARSE, SGLANG_DRAFT_EXT_DEBUG="1")
    assert "skipped draft-maps in sglang.srt.speculative.draft_utils: nothing asks for it" in done.stderr
    assert "applied server-arguments to sglang.srt.server_args:ServerArgs.add_cli_args" in done.stderr


@pytest.mark.parametrize("text", ["", "0", "false"])
def test_debug_is_off(text, tmp_path):
    assert python(write(tmp_path), PARSE, **ASKING, SGLANG_DRAFT_EXT_DEBUG=text).stderr.count("applied") == 0


def test_each_provider_is_logged_once_with_its_distribution_and_file(tmp_path):
    folder = write(tmp_path)
    metadata = tmp_path / "vendor_accel-2.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor-accel\nVersion: 2.1\n")
    (metadata / "RECORD").write_text("provider.py,,\n")
    log = "import logging; logging.basicConfig(level=logging.INFO)\n"
    lines = python(folder, log + PARSE, **ASKING).stderr.splitlines()
    (line,) = (line for line in lines if "provider" in line)
    assert "imported provider of a draft backend's provider: vendor-accel 2.1, " in line
    assert line.endswith(str(tmp_path / "provider.py"))


def test_a_provider_without_a_distribution_is_logged_too(tmp_path):
    log = "import logging; logging.basicConfig(level=logging.INFO)\n"
    done = python(write(tmp_path), log + PARSE, **ASKING)
    assert f"no installed distribution, {tmp_path / 'provider.py'}" in done.stderr
