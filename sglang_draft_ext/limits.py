"""What a draft backend cannot do: as its provider declares it, or as the release's own source has it for stock's backends.

SGLang finds these out when the backend is built, after the models were loaded, or at the first request. Here they are known
before.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from sglang_draft_ext import catalogue, points
from sglang_draft_ext.backend import DraftBackend, Mla
from sglang_draft_ext.catalogue import Builder
from sglang_draft_ext.surface import Surface

_OVERRIDES = "sglang.srt.arg_groups.overrides"
_MLA_BASE = "FlashInferMLAAttnBackend"

# Of FlashInfer's TensorRT-LLM kernels; the releases that do not say so themselves have the same kernels.
_TRTLLM_MHA_PAGES = (16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one backend can do; None means anything.

    Args:
        mla: As in `DraftBackend`.
        max_topk: The most branches that it drafts.
        max_topk_mla: The same for a model with multi-head latent attention, where that differs.
        page_sizes: The KV pages that it reads.
        tree_pages: Whether it drafts more than one branch over pages of more than one token.
        max_head_dim: The widest heads that it attends with.
    """

    mla: Mla = "any"
    max_topk: int | None = None
    max_topk_mla: int | None = None
    page_sizes: tuple[int, ...] | None = None
    tree_pages: bool = True
    max_head_dim: int | None = None


def declared(backend: DraftBackend) -> Limits:
    """What a provider says."""
    return Limits(
        mla=backend.mla,
        max_topk=backend.max_topk,
        page_sizes=backend.page_sizes,
        max_head_dim=backend.max_head_dim,
    )


@cache
def of_release(surface: Surface, name: str) -> Limits:
    """What the release's source says of its own backend *name*."""
    general = catalogue.builders(surface).get(name, ())
    decode = catalogue.map_builders(surface, name, "decode")
    return Limits(
        mla=_mla(surface, general, decode),
        max_topk=_max_topk(surface, name, _classes(decode)),
        max_topk_mla=_max_topk(surface, name, tuple(c for c in _classes(decode) if "MLA" in c[1])),
        page_sizes=_page_sizes(surface, name, general, decode),
        tree_pages=_tree_pages(surface, name, decode),
    )


def can_verify(surface: Surface, name: str) -> bool:
    """Whether one of the classes behind *name*, or of their bases, knows what a target verify is."""
    classes = _classes(catalogue.builders(surface).get(name, ()))
    bases = (base for found in classes for base in _bases(surface, *found))
    modules = {module for module, node in bases if node.name != "AttentionBackend"}
    knows = re.compile("target_verify|TARGET_VERIFY|spec_info")
    texts = (ast.unparse(source.tree) for module in modules if (source := surface.source(module)))
    return not modules or any(knows.search(text) for text in texts)


def _mla(surface: Surface, *builders: tuple[Builder, ...]) -> Mla:
    tests = [_mla_test(node) for found in builders for builder in found for node in _nodes(builder)]
    for answer in tests:
        if answer:
            return answer
    classes = _classes(builders[0])
    if classes and all(_needs_mla(surface, *found) for found in classes):
        return "required"
    return "any"


def _mla_test(node: ast.AST) -> Mla | None:
    """What a creator's refusal of a kind of model says."""
    if isinstance(node, ast.Assert) and ast.unparse(node.test).endswith("runner.use_mla_backend"):
        return "required"
    if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise):
        test = ast.unparse(node.test)
        if re.fullmatch(r"(not )?\S+\.use_mla_backend", test):
            return "required" if test.startswith("not ") else "refused"
    return None


def _needs_mla(surface: Surface, module: str, name: str) -> bool:
    """Whether a class is made for multi-head latent attention, or for the sparse attention over it."""
    return any(
        node.name == _MLA_BASE or re.search(r"assert self\.use_(nsa|dsa)\b", ast.unparse(node))
        for _module, node in _bases(surface, module, name)
    )


def _max_topk(surface: Surface, name: str, classes: tuple[tuple[str, str], ...]) -> int | None:
    if any(_topk_test(node, name) for node in _argument_checks(surface)):
        return 1
    one_branch = re.compile(r"if (self\.)?topk (> 1|!= 1):\n\s+raise|assert self\.topk in \[0, 1\]")

    def limited(module: str, cls: str) -> bool:
        return any(one_branch.search(ast.unparse(node)) for _module, node in _bases(surface, module, cls))

    return 1 if classes and all(limited(*found) for found in classes) else None


def _topk_test(node: ast.If, name: str) -> bool:
    """``if NAME is a backend of this server: if speculative_eagle_topk > 1: raise``."""
    return repr(name) in ast.unparse(node.test) and any(
        isinstance(inner, ast.If)
        and "speculative_eagle_topk > 1" in ast.unparse(inner.test)
        and isinstance(inner.body[0], ast.Raise)
        for inner in node.body
    )


def _page_sizes(
    surface: Surface, name: str, general: tuple[Builder, ...], decode: tuple[Builder, ...]
) -> tuple[int, ...] | None:
    for node in _argument_checks(surface):
        test = ast.unparse(node.test)
        compared = re.findall(r"(\w+)_backend == '(\w+)'", test)
        # Stock's own page rule for the name alone, on whatever device.
        if {found for _field, found in compared} == {name} and " and " not in test:
            body = "\n".join(map(ast.unparse, node.body))
            if found := re.search(r"page_size not in \[([\d, ]+)\]", body) or re.search(
                r"page_size(?: !=| =) (\d+)\b", body
            ):
                return tuple(map(int, found[1].split(",")))
    asserted = [_asserted_page(surface, *cls) for cls in _classes((*general, *decode))]
    if asserted and asserted[-1]:
        return (asserted[-1],)
    return _TRTLLM_MHA_PAGES if name == "trtllm_mha" else None


def _asserted_page(surface: Surface, module: str, name: str) -> int | None:
    """The one page size that a class takes, whatever else it is given."""
    for _module, node in _bases(surface, module, name):
        for method in node.body:
            statements = (
                method.body if isinstance(method, ast.FunctionDef) and method.name == "__init__" else []
            )
            for statement in statements:
                test = ast.unparse(statement.test) if isinstance(statement, ast.Assert) else ""
                if found := re.fullmatch(r"self\.page_size == (\d+)", test):
                    return int(found[1])
    return None


def _tree_pages(surface: Surface, name: str, decode: tuple[Builder, ...]) -> bool:
    """Stock asks this of the target's backend; what it asks for is a property of the draft's."""
    source = surface.source(points.SPECULATIVE_HOOK)
    assigned = (
        ast.literal_eval(node.value)
        for node in (ast.walk(source.tree) if source else ())
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_PAGE_TREE_SPEC_BACKENDS"
    )
    able = next(assigned, None)
    return able is None or not decode or name in able


@cache
def _argument_checks(surface: Surface) -> tuple[ast.If, ...]:
    """Every ``if`` about a backend's name in the resolution of server arguments."""
    sources = (surface.source(module) for module in (points.SERVER_ARGS, _OVERRIDES, points.SPECULATIVE_HOOK))
    found = (node for source in sources if source for node in ast.walk(source.tree))
    return tuple(node for node in found if isinstance(node, ast.If) and "_backend" in ast.unparse(node.test))


def _nodes(builder: Builder) -> Iterator[ast.AST]:
    return (node for part in builder.body for node in ast.walk(part))


def _classes(builders: tuple[Builder, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys(found for builder in builders for found in builder.classes))


def _bases(surface: Surface, module: str, name: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """A class and its bases, as far as the release defines them, with their modules."""
    found = surface.get(module, name)
    if found is None:
        return
    if isinstance(found.node, ast.ImportFrom):
        origin = next((alias.name for alias in found.node.names if name in (alias.asname, alias.name)), name)
        yield from _bases(surface, found.node.module or "", origin)
    elif isinstance(found.node, ast.ClassDef):
        yield module, found.node
        for base in found.node.bases:
            if isinstance(base, ast.Name):
                yield from _bases(surface, module, base.id)
