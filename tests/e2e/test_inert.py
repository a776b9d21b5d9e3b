"""Installed and asked for nothing: the server is the one it was."""

import re

import pytest
from _server import speculative

# What differs between any two servers.
VOLATILE = {"port", "random_seed", "internal_states", "startup_time", "launch_command"}
IMPORT = re.compile(r"import time:.*\|\s*(\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def installed(servers):
    """With Python's own log of what each process imports."""
    return servers.see(*speculative(1), extended=True, env={"PYTHONPROFILEIMPORTTIME": "1"})


@pytest.fixture(scope="module")
def absent(servers):
    return servers.see(*speculative(1), extended=False)


def test_serves_the_same(installed, absent):
    assert installed.tokens == absent.tokens
    assert installed.accept_lengths == absent.accept_lengths


def test_has_the_same_arguments(installed, absent):
    mine, theirs = installed.arguments, absent.arguments
    different = {
        key: (mine.get(key), theirs.get(key))
        for key in mine.keys() | theirs.keys()
        if mine.get(key) != theirs.get(key)
    }
    assert {key: pair for key, pair in different.items() if key not in VOLATILE} == {}


def test_logs_nothing(installed):
    ours = [
        line
        for line in installed.log.splitlines()
        if re.search("draft.ext", line) and not line.startswith("import time:")
    ]
    # SGLang itself lists the plugins that it finds.
    assert [
        line for line in ours if "draft_extend" not in line and "sglang_draft_ext.plugin:load" not in line
    ] == []


def test_patches_nothing(installed):
    imported = set(IMPORT.findall(installed.log))
    assert "sglang_draft_ext._finder" in imported
    assert not {
        name
        for name in imported
        if name.startswith(("sglang_draft_ext.patches.draft", "sglang_draft_ext.multi"))
    }


def test_switched_off_does_not_even_listen(servers, absent):
    seen = servers.see(
        *speculative(1),
        extended=True,
        env={
            "PYTHONPROFILEIMPORTTIME": "1",
            "SGLANG_DRAFT_EXT_DISABLE": "1",
            "SGLANG_DRAFT_EXT_BACKENDS": "no_such_backend",
        },
    )
    assert seen.tokens == absent.tokens
    imported = {name for name in IMPORT.findall(seen.log) if name.startswith("sglang_draft_ext")}
    assert imported <= {"sglang_draft_ext", "sglang_draft_ext._startup", "sglang_draft_ext.plugin"}
