"""The workflows are what their list says, and ask for no more than they need."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import ROOT

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an sdist has no workflows"),
]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "workflows"), "--check"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_they_are_what_the_script_writes():
    done = check(ROOT)
    assert done.returncode == 0, f"run scripts/workflows: {done.stderr}"


@pytest.mark.parametrize("damage", ["changed", "missing", "another"])
def test_a_difference_is_found(tmp_path, damage):
    for name in ("scripts/workflows", "scripts/_eras.py", "scripts/eras.json", "pyproject.toml",
                 "sglang_draft_ext/__init__.py", "sglang_draft_ext/releases.py"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    folder = tmp_path / ".github" / "workflows"
    shutil.copytree(ROOT / ".github" / "workflows", folder)
    file = folder / ("another.yml" if damage == "another" else "test.yml")
    if damage == "missing":
        file.unlink()
    else:
        file.write_text("jobs: {}\n")
    done = check(tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"workflows/{file.name} is not what scripts/workflows writes\n"


@pytest.mark.parametrize(
    "file", sorted((ROOT / ".github" / "workflows").glob("*")), ids=lambda file: file.name
)
def test_they_may_only_read_and_pin_what_they_use(file):
    text = file.read_text()
    assert re.findall(r"permissions:\n((?: +.*\n)*)", text) == ["  contents: read\n"]
    assert "write" not in text.partition("\n")[2]
    assert "secrets" not in text
    used = re.findall(r"uses: (.*)", text)
    assert used
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in used)
