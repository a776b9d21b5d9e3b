"""A user's own program registers a backend and gives it to an Engine for a role; a server takes roles from a file."""

import ast
import json

from _server import FLAGS, run_group, speculative

PROGRAM = """
import json
import sys

import sglang
import sglang_draft_ext

if __name__ == "__main__":
    sglang_draft_ext.register(sglang_draft_ext.DraftBackend(name="mine", attention="stock:torch_native"))
    arguments = json.loads(sys.argv[1])
    engine = sglang.Engine(**arguments["engine"])
    try:
        sampling = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
        answers = engine.generate(input_ids=arguments["prompts"], sampling_params=sampling)
        try:
            sglang_draft_ext.register(sglang_draft_ext.DraftBackend(name="late", attention="stock:torch_native"))
        except sglang_draft_ext.LateRegistrationError as error:
            late = str(error)
        else:
            late = None
    finally:
        engine.shutdown()
    with open(arguments["out"], "w") as file:
        json.dump({"answers": answers, "late": late}, file)
"""


def keywords(flags):
    """Launch flags as Engine's keywords."""
    found = {}
    for word in flags:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            found[name] = True
        else:
            found[name] = ast.literal_eval(word) if word[0].isdigit() else word
    return found


def test_a_registered_backend_reaches_the_spawned_scheduler(servers, plain, tmp_path):
    program, out = tmp_path / "program.py", tmp_path / "out.json"
    program.write_text(PROGRAM)
    engine = keywords([*FLAGS, *speculative(2)]) | {
        "speculative_draft_decode_attention_backend": "mine",
        "model_path": str(servers.model),
        "speculative_draft_model_path": str(servers.model),
    }
    arguments = {"engine": engine, "prompts": [servers.prompt, *servers.prompts], "out": str(out)}
    code, log = run_group(
        [servers.python(extended=True), program, json.dumps(arguments)], tmp_path / "log", timeout=300
    )
    assert code == 0, log[-3000:]
    seen = json.loads(out.read_text())
    assert [answer["output_ids"] for answer in seen["answers"]] == plain.tokens
    assert all(answer["meta_info"]["spec_accept_length"] > 3 for answer in seen["answers"])
    assert "'late' is registered too late" in seen["late"]
    assert "program.py" in seen["late"]


def test_a_config_file_says_roles(servers, plain, tmp_path):
    config = tmp_path / "server.yaml"
    roles = {"prefill": "triton", "decode": "torch_native"}
    config.write_text(
        "".join(f"speculative-draft-{r}-attention-backend: {name}\n" for r, name in roles.items())
    )
    environment = {"SGLANG_DRAFT_EXT_BACKENDS": "torch_native"}
    seen = servers.see(*speculative(1), "--config", str(config), extended=True, env=environment)
    assert seen.tokens == plain.tokens
    reported = seen.arguments["draft_attention_backends"]
    assert {role: reported[role]["backend"] for role in roles} == roles
