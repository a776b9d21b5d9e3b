"""From the installation to the last trace, on every Python that is here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from environments import FINDERS, PTH, Environment
from unit.fake_release import write

CHOICES = "from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES; print('accel' in ATTENTION_BACKEND_CHOICES)"
ASKING = {"SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND"}
CHILDREN = f"""
import multiprocessing, sys

def child():
    {CHOICES.replace("; ", chr(10) + "    ")}

if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
"""


@pytest.fixture
def environment(python: str, tmp_path: Path) -> Environment:
    return Environment.create(tmp_path / "environment", python=python)


def test_a_life(environment: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    environment.write({"neighbour.py": ""})  # pip would remove an empty site-packages too
    before = environment.listing()
    environment.pip("install", "--no-deps", wheels["from the tree"])
    newer = environment.output("import sys; print(sys.version_info >= (3, 11))") == "True"
    for flag in ("-I", "-E", "-s", "-O", *(["-P"] if newer else [])):
        # Bytecode of -O is in no RECORD, so pip would leave it behind, whatever the package.
        assert environment.output(FINDERS, "-B", flag) == "1", flag
    assert environment.output(FINDERS, "-S") == "0"
    assert environment.output(FINDERS, SGLANG_DRAFT_EXT_DISABLE="1") == "0"

    environment.pip("install", "wrapt")
    asking = ASKING | {"PYTHONPATH": str(write(tmp_path / "release"))}
    assert environment.run("-c", CHOICES, **asking).stdout == "True\n"
    assert environment.run("-c", CHOICES, SGLANG_DRAFT_EXT_DISABLE="1", **asking).stdout == "False\n"
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    assert environment.run(script, **asking).stdout == "True\n" * 3

    environment.pip("uninstall", "--yes", "wrapt", "sglang-draft-ext")
    assert environment.listing() == before
    assert environment.output(FINDERS) == "0"


def test_the_package_removed_by_hand(environment: Environment, wheels: dict[str, Path]) -> None:
    environment.pip("install", "--no-deps", wheels["from the tree"])
    write(environment.site_packages)
    shutil.rmtree(environment.site_packages / "sglang_draft_ext")
    if environment.output("import sys; print(sys.version_info >= (3, 15))") == "False":
        assert (environment.site_packages / PTH.name).exists()
        assert environment.output(FINDERS) == "0"
    assert environment.run("-c", CHOICES, **ASKING).stdout == "False\n"
