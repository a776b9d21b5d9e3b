"""The page of numbers says what the records say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import ROOT

RECORDS = ROOT / "docs" / "benchmarks"
SCRIPTS = ("bench", "_bench.py", "_environment.py", "releases.json")


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "bench"), "--check"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_it_is_what_the_records_say() -> None:
    done = check(ROOT)
    assert done.returncode == 0, f"run scripts/bench --docs: {done.stderr}"


@pytest.mark.parametrize("file", sorted(RECORDS.iterdir()), ids=lambda file: file.name)
def test_they_are_small(file: Path) -> None:
    assert file.stat().st_size < 200_000


@pytest.mark.parametrize("damage", ["a sample", "the page", "a plot"])
def test_a_difference_is_found(damage: str, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for name in SCRIPTS:
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    docs = shutil.copytree(ROOT / "docs", tmp_path / "docs")
    record = docs / "benchmarks" / "startup.json"
    if damage == "a sample":
        run = json.loads(record.read_text())
        series = next(iter(run["series"].values()))
        series[:] = [sample * 2 for sample in series]
        record.write_text(json.dumps(run))
    elif damage == "the page":
        (docs / "performance.md").write_text("fast\n")
    else:
        record.with_suffix(".svg").unlink()
    done = check(tmp_path)
    assert done.returncode == 1
    assert "is not what scripts/bench --docs writes" in done.stderr
