"""Runs stock SGLang on a CPU-only machine, for tests. `activate` and `install` are the targets of its entry points."""


def activate() -> str:
    """Name the platform class; SGLang imports it."""
    return "sglang_reference_platform.platform.ReferencePlatform"


def install() -> None:
    """Adapt this process; SGLang calls it once in each of its processes."""
    from sglang_reference_platform import adaptations

    adaptations.install()
