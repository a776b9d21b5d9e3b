"""What every attention backend name of a release can do for a draft, role by role, read from the release's source.

One table for all releases. Nothing in it is decided by version numbers: what the release's draft maps, its general registry
and its backend classes look like says what a name can do there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from sglang_draft_ext import points
from sglang_draft_ext.registry import StockNames
from sglang_draft_ext.selection import Role
from sglang_draft_ext.surface import Definition, Surface

State = Literal["native", "backported", "multistep", "refused"]
MapRole = Literal["extend", "decode"]

FLASH_ATTENTION = "sglang.srt.layers.attention.flashattention_backend"

# Stock's new names for its deprecated ones.
_RENAMED = {"compressed": "dsv4", "tokenspeed_mla": "cutedsl_mla", "nsa": "dsa"}

# Backends for one kind of model. No draft of the algorithms that have roles is of that kind.
_ONE_KIND = {
    "dual_chunk_flash_attn": "it serves models with dual chunk attention, and no draft has it",
    "minicpm_flashattn": "it serves MiniCPM's sparse layers, and no draft has them",
    "minicpm_flashinfer": "it serves MiniCPM's sparse layers, and no draft has them",
    "llada2_cfg_flashinfer": "it serves diffusion language models, which have no draft",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a name can do in one role.

    Args:
        state: ``native``: the release does it; ``backported``: the release's own classes do it, though its map lacks the
            name; ``multistep``: this package does it, out of the release's general backend; ``refused``.
        by: The classes of the release that serve, of which the device and the model choose one.
        why: The reason for ``refused``; else what is special.
    """

    state: State
    by: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A name of the release: its cells, and the new name that stands for it where the release knows only that one."""

    name: str
    prefill: Cell
    extend: Cell
    decode: Cell
    renamed: str | None = None

    def __getitem__(self, role: Role) -> Cell:
        return {"prefill": self.prefill, "extend": self.extend, "decode": self.decode}[role]


@cache
def of(surface: Surface) -> tuple[Row, ...]:
    """The catalogue of the release: every name of its draft maps, its choices and its general registry, by name."""
    general = builders(surface)
    maps = {role: _creators(surface, role) for role in ("extend", "decode")}
    rows = {}
    for name in sorted({*general, *points.choices(surface), *maps["extend"], *maps["decode"]}):
        rows[name] = Row(
            name=name,
            prefill=_prefill(surface, name, general),
            extend=_mapped(surface, name, "extend", maps["extend"], general),
            decode=_mapped(surface, name, "decode", maps["decode"], general),
        )
    for old, new in _RENAMED.items():
        if old in rows and new in rows and old not in general:
            to = rows[new]
            rows[old] = Row(name=old, prefill=to.prefill, extend=to.extend, decode=to.decode, renamed=new)
    return tuple(rows.values())


def row(surface: Surface, name: str) -> Row | None:
    """The row of *name*; None where the release does not know the name."""
    return next((found for found in of(surface) if found.name == name), None)


def current_name(surface: Surface, name: str) -> str:
    """*name*, or what the release calls it now."""
    found = row(surface, name)
    return found.renamed if found and found.renamed else name


def able(surface: Surface, role: Role, asked: Iterable[str] = ()) -> tuple[str, ...]:
    """Every name that can do *role*: what the release's own classes do, and of *asked*, what this package makes."""
    ready = (
        found.name
        for found in of(surface)
        if found[role].state in ("native", "backported") and not found.renamed
    )
    made = (name for name in asked if not (found := row(surface, name)) or found[role].state == "multistep")
    return tuple(dict.fromkeys((*ready, *made)))


def backported(surface: Surface, role: MapRole) -> tuple[str, ...]:
    """The names that the release's map for *role* lacks, and its classes can serve."""
    return tuple(found.name for found in of(surface) if found[role].state == "backported")


def stock_names(surface: Surface) -> StockNames:
    """The names that are the release's own, as a registration must know them."""
    rows = of(surface)
    drafts = (r for r in rows if r.renamed or {r.extend.state, r.decode.state} & {"native"})
    refused = {r.name: r.decode.why for r in rows if r.extend.state == r.decode.state == "refused"}
    return StockNames(general=tuple(builders(surface)), draft=tuple(r.name for r in drafts), refused=refused)


@dataclass(frozen=True)
class Builder:
    """A function, or a part of one, that builds a backend: its statements, and the module that they are in."""

    module: str
    body: tuple[ast.AST, ...]

    @property
    def classes(self) -> tuple[tuple[str, str], ...]:
        """Module and name of the backends, as the body imports them."""
        imports = (node for part in self.body for node in ast.walk(part) if isinstance(node, ast.ImportFrom))
        names = ((node.module or "", alias.name) for node in imports for alias in node.names)
        return tuple(dict.fromkeys(found for found in names if found[1].lower().endswith("backend")))


@cache
def builders(surface: Surface) -> dict[str, tuple[Builder, ...]]:
    """Name -> what builds it in the general registry, or in the method that there was before."""
    registry = surface.source(points.ATTENTION_REGISTRY)
    if registry is not None:
        return {
            name: tuple(_called(surface, points.ATTENTION_REGISTRY, "", creator))
            for creator in registry.definitions
            for name in creator.decorations
        }
    method = surface.get(points.MODEL_RUNNER, "ModelRunner._get_attention_backend_from_str")
    return {name: (found,) for name, found in _compared(method)} if method else {}


def _compared(method: Definition) -> Iterator[tuple[str, Builder]]:
    """The branches of a chain ``if backend_str == NAME: … elif …``."""
    for node in ast.walk(method.node):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
            asked, value = node.test.left, node.test.comparators[0]
            if ast.unparse(asked) == "backend_str" and isinstance(value, ast.Constant):
                yield str(value.value), Builder(points.MODEL_RUNNER, tuple(node.body))


def _called(surface: Surface, module: str, owner: str, creator: Definition) -> Iterator[Builder]:
    """What *creator* does, and what the other creators do that it calls."""
    yield Builder(module, tuple(getattr(creator.node, "body", ())))
    for name in _creator_names(creator.node):
        found = surface.get(module, f"{owner}.{name}" if owner else name)
        if found:
            yield from _called(surface, module, owner, found)


def _creator_names(node: ast.AST) -> tuple[str, ...]:
    """The creators that *node* mentions, other than itself: methods of ``self``, or functions."""
    names = (
        inner.attr if isinstance(inner, ast.Attribute) else inner.id
        for inner in ast.walk(node)
        if isinstance(inner, (ast.Attribute, ast.Name))
    )
    return tuple(dict.fromkeys(name for name in names if name.lstrip("_").startswith("create_")))


def _creators(surface: Surface, role: MapRole) -> dict[str, tuple[Builder, ...]]:
    """Name -> what its entry in the release's map chooses from."""
    module, owner = points.map_owner(surface)
    found = {}
    for definition in points.map_definitions(surface, role):
        dicts = (node for node in ast.walk(definition.node) if isinstance(node, ast.Dict))
        for key, value in ((k, v) for node in dicts for k, v in zip(node.keys, node.values, strict=True)):
            if isinstance(key, ast.Constant):
                methods = (surface.get(module, f"{owner}.{name}") for name in _creator_names(value))
                found[str(key.value)] = tuple(
                    builder for m in methods if m for builder in _called(surface, module, owner, m)
                )
    return found


def map_builders(surface: Surface, name: str, role: MapRole) -> tuple[Builder, ...]:
    """What builds *name* in the release's map for *role*."""
    return _creators(surface, role).get(name, ())


def _names(found: Iterable[Builder]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for builder in found for _module, name in builder.classes))


def _prefill(surface: Surface, name: str, general: dict[str, tuple[Builder, ...]]) -> Cell:
    if name not in general:
        return Cell(state="refused", why="the release builds no general backend of that name")
    return _of_one_kind(name, general) or Cell(state="native", by=_names(general[name]))


def _mapped(
    surface: Surface,
    name: str,
    role: MapRole,
    creators: dict[str, tuple[Builder, ...]],
    general: dict[str, tuple[Builder, ...]],
) -> Cell:
    """The cell of a role that the release looks up in a map."""
    if name in creators:
        by = _names(creators[name])
        why = "" if by else "the release builds none: eagerly, on the draft runner's own backend"
        return Cell(state="native", by=by, why=why)
    if name not in general:
        return Cell(state="refused", why="the release has no such backend")
    return (
        _of_one_kind(name, general)
        or _qsa(surface, name, role)
        or _flashmla(name, role)
        or _fa4(surface, name, role)
        or Cell(state="multistep", by=_names(general[name]))
    )


def _of_one_kind(name: str, general: dict[str, tuple[Builder, ...]]) -> Cell | None:
    if any(_refuses_speculation(builder) for builder in general[name]):
        return Cell(state="refused", why="the release refuses it in speculative decoding")
    return Cell(state="refused", why=_ONE_KIND[name]) if name in _ONE_KIND else None


def _refuses_speculation(builder: Builder) -> bool:
    """Whether it raises whatever the speculative algorithm."""
    return any(
        ast.unparse(node.test).endswith(".speculative_algorithm is not None")
        and not isinstance(node.test, ast.BoolOp)
        and isinstance(node.body[0], ast.Raise)
        for part in builder.body
        for node in ast.walk(part)
        if isinstance(node, ast.If)
    )


def _qsa(surface: Surface, name: str, role: MapRole) -> Cell | None:
    """Not in the maps: a draft whose configuration has a QSA profile gets it whatever is asked for."""
    module, owner = points.map_owner(surface)
    method = {"decode": "_create_qwen_qsa_decode_backend", "extend": "_create_qwen_qsa_draft_extend_backend"}[
        role
    ]
    found = surface.get(module, f"{owner}.{method}") if name == "qsa" else None
    if found is None:
        return None
    by = _names(_called(surface, module, owner, found))
    return Cell(state="native", by=by, why="for every draft with a QSA profile, and no other")


def _flashmla(name: str, role: MapRole) -> Cell | None:
    """Its first map of draft extend lacks it; later ones hold a creator that gives none, which does the same."""
    if name != "flashmla" or role != "extend":
        return None
    return Cell(state="backported", why="as in later releases: eagerly, on the draft runner's own backend")


def _fa4(surface: Surface, name: str, role: MapRole) -> Cell | None:
    """FlashAttention takes the version that it runs; each step can be given it, until the multi-step class is."""
    if name != "fa4":
        return None
    if role == "extend":
        return Cell(state="backported", by=("FlashAttentionBackend",))
    decode = surface.get(FLASH_ATTENTION, "FlashAttentionBackend.forward_decode")
    text = ast.unparse(decode.node) if decode else ""
    if "assert self.fa_impl_ver in [3]" in text:
        return Cell(state="refused", why="FlashAttention 4 does not decode in this release")
    if "fa_impl_ver" not in text:
        return Cell(state="refused", why="in this release FlashAttention 3 decodes, whatever is asked for")
    return Cell(state="backported", by=("FlashAttentionMultiStepBackend", "FlashAttentionBackend"))
