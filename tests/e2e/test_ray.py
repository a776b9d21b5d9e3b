"""Schedulers that are Ray's actors: one that differs from its driver is refused. The CPU platform cannot draft in an actor."""

from __future__ import annotations

import json

import pytest
from _environment import libraries
from _server import FLAGS, run_group, speculative
from e2e.test_programs import keywords

PROGRAM = """
import json
import shutil
import sys
import tempfile

import ray
import sglang_draft_ext

if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    sglang_draft_ext.register(sglang_draft_ext.DraftBackend(name="mine", attention="stock:torch_native"))
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: its sockets lie in there
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, _temp_dir=folder)
    try:
        from sglang.srt.ray.engine import RayEngine

        engine = RayEngine(**arguments["engine"])
        sampling = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
        answers = engine.generate(input_ids=arguments["prompts"], sampling_params=sampling)
        engine.shutdown()
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    with open(arguments["out"], "w") as file:
        json.dump(answers, file)
"""
# Stock's actor sets CUDA's device, whatever the platform is, and loads no plugins, which the reference platform needs.
START = """
import os, sys
import wrapt

def load_plugins(module):
    from sglang.srt.plugins import load_plugins
    load_plugins()

wrapt.register_post_import_hook(lambda torch: setattr(torch.cuda, "set_device", lambda device: None), "torch")
wrapt.register_post_import_hook(load_plugins, "sglang.srt.ray.scheduler_actor")
if "default_worker.py" in " ".join(sys.orig_argv):
    os.environ["SGLANG_DRAFT_EXT_BACKENDS"] = {asked!r}
"""


def serve(servers, folder, asked):
    """Run the program with actors whose environment asks for *asked*; its exit code and output."""
    program, out = folder / "program.py", folder / "out.json"
    program.write_text(PROGRAM)
    (folder / "sitecustomize.py").write_text(START.format(asked=asked))
    engine = keywords([*FLAGS, *speculative(1, "prefill=triton,decode=mine")]) | {
        "model_path": str(servers.model),
        "speculative_draft_model_path": str(servers.model),
    }
    arguments = {"engine": engine, "prompts": [servers.prompt, *servers.prompts], "out": str(out)}
    env = {
        "PYTHONPATH": f"{folder}:{libraries('ray')}",
        "SGLANG_DRAFT_EXT_BACKENDS": "torch_native",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [servers.python(extended=True), program, json.dumps(arguments)]
    return run_group(command, folder / "log", env=env, timeout=300)


@pytest.mark.parametrize("asked", ["", "flex_attention"])
def test_an_actor_that_was_asked_for_something_else_is_refused(servers, tmp_path, asked):
    code, log = serve(servers, tmp_path, asked)
    assert code != 0
    assert "A process of the server was asked for something else than the one that started it" in log
    assert "draft backend 'torch_native': nothing here" in log
    assert "Load weight" not in log
