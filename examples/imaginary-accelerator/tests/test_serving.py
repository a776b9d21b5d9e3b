"""A real server that drafts on this backend. Without an accelerator it runs on sglang-draft-ext's CPU reference platform."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

# A checkout of sglang-draft-ext: its scripts know the flags and make the tiny model.
CHECKOUT = Path(os.environ.get("DRAFT_EXT_CHECKOUT", Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(CHECKOUT / "scripts"))

import _environment  # noqa: E402
from _server import Rule, Server, speculative  # noqa: E402

pytestmark = pytest.mark.serves


def test_drafts_what_the_target_says(tmp_path: Path) -> None:
    model = _environment.model()
    rule = Rule(model)
    prompts = [rule.prompt(length, (1, length % 12)) for length in (3, 8, 21)]
    flags = [*_environment.serving_flags(version("sglang")), *speculative(topk=2, draft="imaginary")]
    env = {"SGLANG_DRAFT_EXT_BACKENDS": "imaginary"}
    with Server(Path(sys.executable), model, tmp_path / "server.log", *flags, env=env) as server:
        answers = server.generate(prompts, 16)
    assert [answer.tokens for answer in answers] == [rule.continue_from(prompt, 16) for prompt in prompts]
    # Three drafted tokens at most, and one of the target's own. The draft is the target's model: it should know.
    assert all(answer.accept_length > 3 for answer in answers)
