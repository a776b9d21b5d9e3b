"""The release table of the README is the one that was seen."""

import json
import sys
from pathlib import Path

import pytest
from environments import ROOT

pytestmark = pytest.mark.unit

SCRIPTS = ROOT / "scripts"


def load_matrix(monkeypatch):
    """scripts/matrix as a module; it has no suffix."""
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("matrix", str(SCRIPTS / "matrix"))
    module = module_from_spec(spec_from_loader("matrix", loader))
    loader.exec_module(module)
    return module


def test_the_table_is_what_the_matrix_saw(monkeypatch):
    matrix = load_matrix(monkeypatch)
    begin, end = matrix.MARKERS
    readme = (ROOT / "README.md").read_text()
    assert readme.count(begin) == readme.count(end) == 1, "the markers of the table are missing"
    table = readme.partition(begin)[2].partition(end)[0].strip("\n")
    seen = json.loads((ROOT / "docs" / "releases.json").read_text())
    assert table == matrix.markdown(seen), "run scripts/matrix --readme docs/releases.json"


def test_every_tested_release_is_in_the_table():
    from sglang_draft_ext.releases import TESTED

    seen = json.loads((ROOT / "docs" / "releases.json").read_text())["releases"]
    assert sorted(seen) == sorted(TESTED)


def test_the_words_of_the_cells(monkeypatch):
    matrix = load_matrix(monkeypatch)
    seen = json.loads((ROOT / "docs" / "releases.json").read_text())["releases"]
    for release, each in seen.items():
        for title, text in matrix.cells(each).items():
            if title != "accept length":
                assert text.partition(" ")[0] in ("verified", "native", "refused"), (release, title)
                assert text == "verified" or "(" in text, f"{release}, {title}: no reason"


@pytest.mark.parametrize("file", ["points.py", "platform.py", "base.txt", "_server.py", "tiny_models"])
def test_what_was_seen_is_forgotten_when_that_changes(monkeypatch, file):
    matrix = load_matrix(monkeypatch)
    before = matrix.seen_before("0.5.23", "serve")
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == file))
    assert matrix.seen_before("0.5.23", "serve") != before
