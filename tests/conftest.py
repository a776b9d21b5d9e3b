"""Marks each test with the kind that its folder names, so that none is left out of `pytest -m KIND` by accident."""

from pathlib import Path

import pytest

KINDS = ("unit", "contract", "e2e", "lifecycle")


@pytest.hookimpl(tryfirst=True)  # before -m makes its choice
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(root).parts[0]
        if folder in KINDS and not any(item.get_closest_marker(kind) for kind in KINDS):
            item.add_marker(folder)
