"""The page of numbers says what the records say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from environments import ROOT

RECORDS = ROOT / "docs" / "benchmarks"
SCRIPTS = ("bench", "_bench.py", "_environment.py", "releases.json")


def bench(root: Path, what: str = "--check") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "bench"), what]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def copied(root: Path) -> Path:
    """A copy of what makes the page, and of the page; the folder of the documents."""
    (root / "scripts").mkdir()
    for name in SCRIPTS:
        shutil.copy(ROOT / "scripts" / name, root / "scripts")
    return shutil.copytree(ROOT / "docs", root / "docs")


def test_it_is_what_the_records_say() -> None:
    done = bench(ROOT)
    assert done.returncode == 0, f"run scripts/bench --docs: {done.stderr}"


@pytest.mark.parametrize("file", sorted(RECORDS.iterdir()), ids=lambda file: file.name)
def test_they_are_small(file: Path) -> None:
    assert file.stat().st_size < 200_000


@pytest.mark.parametrize("damage", ["a sample", "the page", "a plot"])
def test_a_difference_is_found(damage: str, tmp_path: Path) -> None:
    docs = copied(tmp_path)
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
    done = bench(tmp_path)
    assert done.returncode == 1
    assert "is not what scripts/bench --docs writes" in done.stderr


def test_a_sweep_is_compared_with_its_base(tmp_path: Path) -> None:
    docs = copied(tmp_path)
    results = {"ours": {"ms": 3.0, "bytes": 512}, "stock's": {"ms": 2.0, "bytes": 2048}}
    points = [{"axis": "batch", "point": {"batch": size, "topk": 4}, "results": results} for size in (1, 16)]
    about = json.loads((RECORDS / "startup.json").read_text())["machine"]
    run = {"name": "multistep", "title": "Preparing", "text": "Text.", "machine": about}
    (docs / "benchmarks" / "multistep.json").write_text(
        json.dumps({**run, "base": "stock's", "points": points})
    )
    assert bench(tmp_path).returncode == 1
    assert bench(tmp_path, "--docs").returncode == 0
    assert bench(tmp_path).returncode == 0
    page = (docs / "performance.md").read_text()
    assert "Along batch, at topk 4:" in page
    assert "| 16 | 2.00 | 2.0 | 1.50 | 0.25 |" in page
    assert ElementTree.parse(docs / "benchmarks" / "multistep.svg").getroot().tag.endswith("svg")
