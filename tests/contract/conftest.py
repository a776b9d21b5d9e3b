"""The release under test is the `sglang` on the path; this package must be active in this interpreter before it is imported."""

import os

# Read when SGLang is first imported, by any test module.
os.environ["SGLANG_DRAFT_EXT_BACKENDS"] = "contract=contract.provider:BACKEND,torch_native"
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def pytest_configure(config):
    # What stock and its dependencies warn of is theirs; what this package warns of is an error.
    config.addinivalue_line("filterwarnings", "ignore")
    config.addinivalue_line("filterwarnings", "error:::sglang_draft_ext")
