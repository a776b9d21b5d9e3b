"""The catalogue on the fake release, and the page that is written from it."""

import shutil
import subprocess
import sys

import pytest
from environments import ROOT
from unit.fake_release import write

from sglang_draft_ext import catalogue
from sglang_draft_ext.surface import Surface

pytestmark = pytest.mark.unit

REGISTRY = "srt/layers/attention/attention_registry.py"
CHOICES = "srt/arg_groups/choices.py"


def catalogue_of(folder, *changes):
    """The catalogue of the fake release with each (file, old text, new text) applied."""
    write(folder)
    for name, old, new in changes:
        path = folder / "sglang" / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    return Surface([str(folder / "sglang")], "9.9.9")


def general(name, body="return TorchNative(runner)"):
    return REGISTRY, "ATTENTION_BACKENDS = {}", f"""ATTENTION_BACKENDS = {{}}

@register_attention_backend("{name}")
def create_{name}_backend(runner):
    {body}
"""  # fmt: skip


def states(surface, name):
    row = catalogue.row(surface, name)
    return [row[role].state for role in ("prefill", "extend", "decode")]


def test_what_the_maps_hold_is_native_and_what_they_lack_is_made(tmp_path):
    surface = catalogue_of(tmp_path)
    assert [row.name for row in catalogue.of(surface)] == ["torch_native", "triton", "wave"]
    assert states(surface, "triton") == ["native"] * 3
    assert states(surface, "wave") == ["native", "multistep", "multistep"]
    assert catalogue.able(surface, "decode") == ("triton",)
    assert catalogue.able(surface, "decode", ("wave", "accel")) == ("triton", "wave", "accel")
    assert catalogue.able(surface, "prefill") == ("torch_native", "triton", "wave")


def test_a_name_without_a_general_backend_cannot_read_the_prompt(tmp_path):
    surface = catalogue_of(tmp_path, (REGISTRY, '@register_attention_backend("triton")', ""))
    assert states(surface, "triton") == ["refused", "native", "native"]


def test_what_refuses_speculation_is_refused(tmp_path):
    refuses = "if get_spec().speculative_algorithm is not None:\n        raise ValueError\n    return TorchNative(runner)"
    on_a_condition = refuses.replace("if get_spec()", "if runner.dcp and get_spec()")
    assert states(catalogue_of(tmp_path / "a", general("hpc_ops", refuses)), "hpc_ops") == ["refused"] * 3
    surface = catalogue_of(tmp_path / "b", general("some", on_a_condition))
    assert states(surface, "some") == ["native", "multistep", "multistep"]


@pytest.mark.parametrize(
    ("decodes", "state"),
    [
        ('assert self.fa_impl_ver in [3], "no"', "refused"),
        ("return flash_attn(q)", "refused"),
        ("return flash_attn(q, ver=self.fa_impl_ver)", "backported"),
    ],
)
def test_flash_attention_4_is_backported_where_it_decodes(tmp_path, decodes, state):
    surface = catalogue_of(tmp_path, general("fa4"))
    path = tmp_path / "sglang/srt/layers/attention/flashattention_backend.py"
    path.write_text(f"class FlashAttentionBackend:\n    def forward_decode(self, q):\n        {decodes}\n")
    assert states(surface, "fa4") == ["native", "backported", state]
    assert catalogue.backported(surface, "extend") == ("fa4",)


@pytest.mark.parametrize(
    ("known", "expected"), [(["dsv4"], "dsv4"), (["dsv4", "compressed"], "compressed"), ([], "compressed")]
)
def test_a_renamed_backend_has_its_new_name_where_the_release_knows_only_that(tmp_path, known, expected):
    surface = catalogue_of(
        tmp_path, (CHOICES, '"wave"', '"wave", "compressed"'), *(general(name) for name in known)
    )
    assert catalogue.current_name(surface, "compressed") == expected
    assert ("compressed" in catalogue.stock_names(surface).draft) == (expected == "dsv4")


def test_a_name_that_nothing_builds_is_refused(tmp_path):
    surface = catalogue_of(tmp_path, (CHOICES, '"wave"', '"wave", "gone"'))
    assert states(surface, "gone") == ["refused"] * 3
    assert "gone" in catalogue.stock_names(surface).refused


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a wheel has no documentation")
@pytest.mark.parametrize("damage", [False, True])
def test_the_page_is_what_the_script_writes(tmp_path, damage):
    for name in ("scripts", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    if damage:
        page = tmp_path / "docs" / "backends.md"
        page.write_text(page.read_text().replace("native", "refused", 1))
    command = [sys.executable, str(tmp_path / "scripts" / "catalogue"), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == damage, done.stdout + done.stderr
