"""One grammar under the fuzzer: _fuzz.py TARGET INPUTS [libFuzzer options]. For scripts/fuzz."""

from __future__ import annotations

import json
import os
import sys

import atheris

with atheris.instrument_imports():
    from sglang_draft_ext import selection, settings
    from sglang_draft_ext.errors import OFF_SWITCH, DraftExtError, SelectionError, SettingsError

EVERY = 50_000
# Of what most inputs are put together, among characters of the fuzzer's own.
TOKENS = ["prefill", "extend", "decode", "=", ",", ":", ".", " ", "fa3", "module:attr", "../x", "é", "\n"]  # fmt: skip


def backends(text: str) -> object:
    requests = settings.parse_backends(text)
    assert len({request.name for request in requests}) == len(requests)
    for request in requests:
        assert settings.NAME.fullmatch(request.name)
        if request.reference is not None:
            module, colon, attribute = request.reference.partition(":")
            assert colon
            assert all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))
    return requests


def select(text: str) -> object:
    roles = selection.parse(text)
    assert roles
    assert set(roles) <= set(selection.ROLES)
    assert all(settings.NAME.fullmatch(name) for name in roles.values())
    whole = selection.complete(roles, prefill="p", decode="d", attention_mode="prefill")
    assert selection.parse(str(whole)) == {role: getattr(whole, role) for role in selection.ROLES}
    return roles


def main(target: str, inputs: int, options: list[str]) -> None:
    function, ours = {"backends": (backends, SettingsError), "selection": (select, SelectionError)}[target]
    counts = {"inputs": 0, "values": 0, "errors": 0}
    kinds: set[str] = set()

    def one(data: bytes) -> None:
        given = atheris.FuzzedDataProvider(data)
        if given.ConsumeBool():
            text = given.ConsumeUnicode(120)
        else:
            text = "".join(
                TOKENS[given.ConsumeIntInRange(0, len(TOKENS) - 1)]
                if given.ConsumeBool()
                else given.ConsumeUnicode(3)
                for _ in range(given.ConsumeIntInRange(0, 14))
            )
        try:
            function(text)
        except DraftExtError as error:
            if type(error) is not ours or OFF_SWITCH not in str(error) or not error.remedy:
                raise AssertionError("not the error that this grammar has") from error
            counts["errors"] += 1
            kinds.add(error.remedy)
        else:
            counts["values"] += 1
        counts["inputs"] += 1
        if counts["inputs"] % EVERY == 0 or counts["inputs"] == inputs:
            print(json.dumps({**counts, "kinds": sorted(kinds)}), flush=True)
        if counts["inputs"] == inputs:
            os._exit(0)  # libFuzzer does not come back

    atheris.Setup([sys.argv[0], *options, "-max_len=200", "-verbosity=0"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
