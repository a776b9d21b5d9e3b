"""The declared hook table: every place in SGLang that this package relies on or changes.

A *point* is one thing to be patched. Its shape changed over the releases, so it lists *eras*, newest first, each told by a
feature test; the first era whose test holds is the release's. An era's *hooks* are then verified against the release's
source before anything is changed, all at once, so that a refusal names every mismatch and comes before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import Literal

from sglang_draft_ext.errors import SettingsError
from sglang_draft_ext.hook import Era, Hook, Mismatch, Point, Purpose, mismatches
from sglang_draft_ext.settings import DISABLE
from sglang_draft_ext.surface import Definition, Kind, Surface

SERVER_ARGS = "sglang.srt.server_args"
CHOICES = "sglang.srt.arg_groups.choices"
SPECULATIVE_HOOK = "sglang.srt.arg_groups.speculative_hook"
ATTENTION_REGISTRY = "sglang.srt.layers.attention.attention_registry"
BACKEND_SETUP = "sglang.srt.model_executor.model_runner_components.attention_backend_setup"
ENGINE = "sglang.srt.entrypoints.engine"
MODEL_RUNNER = "sglang.srt.model_executor.model_runner"
HYBRID = "sglang.srt.layers.attention.hybrid_attn_backend"
SCHEDULER = "sglang.srt.managers.scheduler"
DRAFT_UTILS = "sglang.srt.speculative.draft_utils"
DRAFT_WORKER_COMMON = "sglang.srt.speculative.draft_worker_common"
EAGLE_WORKER = "sglang.srt.speculative.eagle_worker"
DECODE_GRAPH = "sglang.srt.speculative.eagle_draft_cuda_graph_runner"
EXTEND_GRAPH = "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner"
MULTI_LAYER_GRAPH = "sglang.srt.speculative.multi_layer_eagle_draft_extend_cuda_graph_runner"
MULTI_LAYER_WORKER = "sglang.srt.speculative.multi_layer_eagle_worker"
MULTI_LAYER_WORKER_V2 = "sglang.srt.speculative.multi_layer_eagle_worker_v2"
EAGLE_WORKER_V2 = "sglang.srt.speculative.eagle_worker_v2"
SPEC_INFO = "sglang.srt.speculative.spec_info"
DFLASH_WORKER = "sglang.srt.speculative.dflash_worker"
DFLASH_WORKER_V2 = "sglang.srt.speculative.dflash_worker_v2"
FORWARD_BATCH_INFO = "sglang.srt.model_executor.forward_batch_info"
DETOKENIZER = "sglang.srt.managers.detokenizer_manager"
DATA_PARALLEL = "sglang.srt.managers.data_parallel_controller"
MULTI_TOKENIZER = "sglang.srt.managers.multi_tokenizer_mixin"

_ALLOWED = ("flashinfer", "triton")
RESOLVE_DFLASH = "_resolve_dflash_draft_attention_backend"


def _has(module: str, attribute: str) -> Callable[[Surface], bool]:
    return lambda surface: surface.get(module, attribute) is not None


def _create_backend_takes(parameter: str, present: bool) -> Callable[[Surface], bool]:
    def test(surface: Surface) -> bool:
        found = surface.get(DRAFT_UTILS, "DraftBackendFactory._create_backend")
        return found is not None and (parameter in found.parameters) == present

    return test


def _has_list(module: str, attribute: str) -> Callable[[Surface], bool]:
    """The module makes the list itself: a newer release only imports it there."""

    def test(surface: Surface) -> bool:
        found = surface.get(module, attribute)
        return found is not None and found.kind != "import"

    return test


def _resolves_when_built(surface: Surface) -> bool:
    # Newer records have an empty `__post_init__`, and the newest would not even call another one.
    found = surface.get(SERVER_ARGS, "ServerArgs.__post_init__")
    return found is not None and found.does_something


def _no_draft_choices(surface: Surface) -> bool:
    name = "DRAFT_ATTENTION_BACKEND_CHOICES"
    return surface.source(CHOICES) is None and surface.get(SERVER_ARGS, name) is None


def _no_dflash(surface: Surface) -> bool:
    known = surface.get(SPEC_INFO, "SpeculativeAlgorithm")
    return known is not None and surface.get(SPEC_INFO, "SpeculativeAlgorithm.DFLASH") is None


def _worker_makes_its_runner(surface: Surface) -> bool:
    """DFLASH's worker does it alone: it neither has nor imports what would resolve the name once more."""
    return (
        surface.source(DRAFT_WORKER_COMMON) is None
        and surface.get(DFLASH_WORKER_V2, "DFlashWorkerV2") is not None
        and surface.get(DFLASH_WORKER_V2, "build_draft_tp_worker") is None
        and not _no_hook_resolver(surface)
    )


def _no_hook_resolver(surface: Surface) -> bool:
    return surface.get(SPECULATIVE_HOOK, RESOLVE_DFLASH) is None


def _inline_in(module: str, constructor: str) -> Callable[[Surface], bool]:
    """DFLASH's allow-list is a tuple inside the worker's constructor, and nothing else resolves the name."""

    def test(surface: Surface) -> bool:
        found = surface.get(module, constructor)
        tuples = found.constants if found else ()
        return any({*_ALLOWED} <= {*names} for names in tuples) and _no_hook_resolver(surface)

    return test


def _constructor_era(module: str, constructor: str) -> Era:
    hook = Hook(module=module, attribute=constructor, tuple_of=_ALLOWED, edit="dflash_worker:extend")
    return Era(name=f"a tuple in {constructor}", test=_inline_in(module, constructor), hooks=(hook,))


def _map_hooks(
    module: str, owner: str, *, decode: str, extend: str, returns: Literal["pair", "object"]
) -> tuple[Hook, ...]:
    return (
        Hook(
            module=module,
            attribute=f"{owner}._create_backend",
            parameters=("self", "backend_name", "backend_map", "error_template"),
            wrapper="draft_utils:create_backend",
        ),
        Hook(
            module=module,
            attribute=f"{owner}.{decode}",
            parameters=("self",),
            wrapper="draft_utils:for_decode",
        ),
        Hook(
            module=module,
            attribute=f"{owner}.{extend}",
            parameters=("self",),
            wrapper="draft_utils:for_extend",
        ),
        # One creator of each map stands for the shape of all its values.
        Hook(module=module, attribute=f"{owner}._create_triton_decode_backend", returns=returns),
        Hook(module=module, attribute=f"{owner}._create_triton_prefill_backend", returns=returns),
    )


def _factory_hooks(returns: Literal["pair", "object"]) -> tuple[Hook, ...]:
    return _map_hooks(
        DRAFT_UTILS,
        "DraftBackendFactory",
        decode="create_decode_backend",
        extend="create_draft_extend_backend",
        returns=returns,
    )


EXTEND_CHOICES = "choices:extend"


def _list_hook(module: str, attribute: str) -> tuple[Hook, ...]:
    return (Hook(module=module, attribute=attribute, kind="list", edit=EXTEND_CHOICES),)


def _helper_point(name: str, helper: str, *none_yet: Era) -> Point:
    """Stock's own way to extend a list of choices: a function, later a bound method of the list."""

    def hook(module: str, kind: Kind, *parameters: str) -> Hook:
        return Hook(
            module=module, attribute=helper, kind=kind, parameters=parameters, edit="choices:guard_helper"
        )

    def is_a(kind: Kind) -> Callable[[Surface], bool]:
        return lambda surface: (found := surface.get(SERVER_ARGS, helper)) is not None and found.kind == kind

    return Point(
        name=name,
        serves=("backends", "selection"),
        eras=(
            Era(
                name="in a module of choices",
                test=_has(CHOICES, helper),
                hooks=(hook(CHOICES, "value"), hook(SERVER_ARGS, "import")),
            ),
            Era(name="a method", test=is_a("value"), hooks=(hook(SERVER_ARGS, "value"),)),
            Era(name="a function", test=is_a("function"), hooks=(hook(SERVER_ARGS, "function", "choices"),)),
            *none_yet,
        ),
    )


def _process_point(name: str, module: str, *classes: str, wrapper: str = "begin") -> Point:
    """Where a process of a server begins its work; stock reports what is raised there to the parent."""

    def era(owner: str) -> Era:
        constructor = f"{owner}.__init__"
        hook = Hook(
            module=module,
            attribute=constructor,
            parameters=("self", "server_args", "port_args"),
            wrapper=f"processes:{wrapper}",
        )
        return Era(name=owner, test=_has(module, constructor), hooks=(hook,))

    return Point(name=name, serves=("backends", "selection"), eras=tuple(map(era, classes)))


def _graph_era(role: str, module: str, runner: str) -> Era:
    """What captures a role of the draft in CUDA graphs: the worker makes one, and knows what to do without one."""
    hooks = (
        Hook(
            module=module,
            attribute=runner,
            kind="class",
            edit=f"eagle_draft_cuda_graph_runner:skip_{role}",
        ),
        Hook(module=module, attribute=f"{runner}.__init__", parameters=("self", "eagle_worker")),
    )
    return Era(name="a class that the worker calls", test=_has(module, runner), hooks=hooks)


def _graph_point(role: str, module: str, runner: str) -> Point:
    era = _graph_era(role, module, runner)
    return Point(name=f"draft {role} graph", serves=("backends", "selection"), eras=(era,))


def _multi_layer_graph_point() -> Point:
    """Multi-layer EAGLE captures draft extend once per layer; its first worker holds the graphs in a list."""
    era = _graph_era("multi_layer", MULTI_LAYER_GRAPH, "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner")
    method = "MultiLayerEagleWorker.init_cuda_graphs"
    hook = Hook(
        module=MULTI_LAYER_WORKER,
        attribute=method,
        parameters=("self",),
        wrapper="eagle_draft_cuda_graph_runner:init_multi_layer",
    )
    first = Era(
        name="a class, and a list of the first worker's",
        test=_has(MULTI_LAYER_WORKER, method),
        hooks=(*era.hooks, hook),
    )
    none_yet = Era(
        name="no multi-layer EAGLE yet", test=lambda surface: surface.source(MULTI_LAYER_WORKER_V2) is None
    )
    return Point(
        name="multi-layer draft extend graph",
        serves=("backends", "selection"),
        eras=(first, era, none_yet),
    )


def _server_args_hooks(resolution: str) -> tuple[Hook, ...]:
    return (
        Hook(
            module=SERVER_ARGS,
            attribute=f"ServerArgs.{resolution}",
            parameters=("self",),
            wrapper="server_args:resolution",
        ),
        Hook(
            module=SERVER_ARGS,
            attribute="ServerArgs.add_cli_args",
            parameters=("parser",),
            wrapper="server_args:add_cli_args",
        ),
        Hook(
            module=SERVER_ARGS,
            attribute="ServerArgs.from_cli_args",
            parameters=("args",),
            wrapper="server_args:from_cli_args",
        ),
    )


def _own_backend_hooks(resolver: str, *parameters: str) -> tuple[Hook, ...]:
    return (
        Hook(
            module=BACKEND_SETUP,
            attribute=resolver,
            parameters=parameters,
            wrapper="attention_backend_setup:resolve_strs",
        ),
    )


_BUILDING = Hook(
    module=SERVER_ARGS,
    attribute="ServerArgs.__post_init__",
    parameters=("self",),
    edit="server_args:watch_building",
)
_DFLASH = ("DFLASH", "DSPARK")


def _extend_graph_era(name: str, method: str, listed: str) -> Era:
    """The second EAGLE worker captures draft extend for the classes of a list in one of its methods."""
    attribute = f"EagleDraftWorker.{method}"

    def test(surface: Surface) -> bool:
        found = surface.get(EAGLE_WORKER_V2, attribute)
        return found is not None and listed in found.mentions

    hooks = (
        Hook(
            module=EAGLE_WORKER_V2,
            attribute=attribute,
            parameters=("self",),
            mentions=(listed, "isinstance"),
            wrapper=f"eagle_worker_v2:allow_{'decode' if 'MultiStep' in listed else 'extend'}",
        ),
        Hook(module=EAGLE_WORKER_V2, attribute=listed, kind="import"),
    )
    return Era(name=name, test=test, hooks=hooks)


def _one_draft_extend(surface: Surface) -> bool:
    """The release that merged the two forward modes of draft extend lets its worker replace the runner's own backend."""
    known = surface.get(FORWARD_BATCH_INFO, "ForwardMode")
    return known is not None and surface.get(FORWARD_BATCH_INFO, "ForwardMode.DRAFT_EXTEND") is None


def _no_extend_graph_list(surface: Surface) -> bool:
    """No second worker yet, or one that captures every backend or none."""
    return (
        surface.get(EAGLE_WORKER_V2, "TritonAttnBackend") is None
        and surface.get(EAGLE_WORKER_V2, "TritonMultiStepDraftBackend") is None
    )


POINTS = (
    Point(
        name="server arguments",
        serves=("backends", "selection"),
        always=True,
        eras=(
            Era(
                name="resolve_once",
                test=_has(SERVER_ARGS, "ServerArgs.resolve_once"),
                hooks=_server_args_hooks("resolve_once"),
            ),
            Era(
                name="__post_init__",
                test=_resolves_when_built,
                hooks=_server_args_hooks("__post_init__"),
            ),
        ),
    ),
    Point(
        name="arguments built",
        serves=(),  # without it, the window closes when they are resolved
        always=True,
        eras=(
            Era(
                name="a struct",
                test=_has(SERVER_ARGS, "_rebuild_server_args"),
                hooks=(
                    _BUILDING,
                    Hook(module=SERVER_ARGS, attribute="_rebuild_server_args", parameters=("cls", "fields")),
                ),
            ),
            Era(
                name="a dataclass",
                test=_has(SERVER_ARGS, "ServerArgs.resolve_once"),
                hooks=(
                    _BUILDING,
                    Hook(module=SERVER_ARGS, attribute="ServerArgs.resolve_once", parameters=("self",)),
                ),
            ),
            Era(name="resolved when built", test=_resolves_when_built),
        ),
    ),
    Point(
        name="choices",
        eras=(
            Era(
                name="a module of choices",
                test=_has(CHOICES, "ATTENTION_BACKEND_CHOICES"),
                hooks=_list_hook(CHOICES, "ATTENTION_BACKEND_CHOICES"),
            ),
            Era(
                name="in server_args",
                test=_has_list(SERVER_ARGS, "ATTENTION_BACKEND_CHOICES"),
                hooks=_list_hook(SERVER_ARGS, "ATTENTION_BACKEND_CHOICES"),
            ),
        ),
    ),
    Point(
        name="general registry",
        eras=(
            Era(
                name="a registry",
                test=_has(ATTENTION_REGISTRY, "ATTENTION_BACKENDS"),
                hooks=(
                    Hook(
                        module=ATTENTION_REGISTRY,
                        attribute="ATTENTION_BACKENDS",
                        kind="dict",
                        edit="attention_registry:add",
                    ),
                ),
            ),
            Era(
                name="if/elif",
                test=_has(MODEL_RUNNER, "ModelRunner._get_attention_backend_from_str"),
                hooks=(
                    Hook(
                        module=MODEL_RUNNER,
                        attribute="ModelRunner._get_attention_backend_from_str",
                        parameters=("self", "backend_str"),
                        wrapper="model_runner:attention_backend_from_str",
                    ),
                ),
            ),
        ),
    ),
    Point(
        name="draft maps",
        serves=("backends", "selection"),
        eras=(
            Era(
                name="factory of pairs",
                test=_create_backend_takes("stamps_children", True),
                hooks=_factory_hooks("pair"),
            ),
            Era(
                name="factory of backends",
                test=_create_backend_takes("stamps_children", False),
                hooks=_factory_hooks("object"),
            ),
            Era(
                name="methods of EAGLEWorker",
                test=_has(EAGLE_WORKER, "EAGLEWorker._create_backend"),
                hooks=_map_hooks(
                    EAGLE_WORKER,
                    "EAGLEWorker",
                    decode="_create_decode_backend",
                    extend="_create_draft_extend_backend",
                    returns="object",
                ),
            ),
        ),
    ),
    _graph_point("decode", DECODE_GRAPH, "EAGLEDraftCudaGraphRunner"),
    _graph_point("extend", EXTEND_GRAPH, "EAGLEDraftExtendCudaGraphRunner"),
    _multi_layer_graph_point(),
    Point(
        name="draft runner's own backend",
        serves=("selection",),
        eras=(
            Era(
                name="a public resolver",
                test=_has(BACKEND_SETUP, "resolve_attention_backend_strs"),
                hooks=_own_backend_hooks("resolve_attention_backend_strs", "model_runner"),
            ),
            Era(
                name="a private resolver",
                test=_has(BACKEND_SETUP, "_resolve_attention_backend_strs"),
                hooks=_own_backend_hooks("_resolve_attention_backend_strs", "server_args", "is_draft_worker"),
            ),
            Era(
                name="a method of ModelRunner",
                test=_has(MODEL_RUNNER, "ModelRunner._get_attention_backend_from_str"),
                hooks=(
                    Hook(
                        module=MODEL_RUNNER,
                        attribute="ModelRunner._get_attention_backend",
                        parameters=("self",),
                        wrapper="model_runner:attention_backend",
                    ),
                    Hook(
                        module=MODEL_RUNNER,
                        attribute="ModelRunner._get_attention_backend_from_str",
                        parameters=("self", "backend_str"),
                    ),
                ),
            ),
        ),
    ),
    Point(
        name="draft runner's extend",
        serves=("backends", "selection"),
        eras=(
            Era(name="none: the extend map's backend takes its place", test=_one_draft_extend),
            Era(
                name="a method of ModelRunner",
                test=_has(MODEL_RUNNER, "ModelRunner._get_attention_backend_from_str"),
                hooks=(
                    Hook(
                        module=MODEL_RUNNER,
                        attribute="ModelRunner._get_attention_backend_from_str",
                        parameters=("self", "backend_str"),
                        wrapper="model_runner:draft_attention_backend_from_str",
                    ),
                ),
            ),
        ),
    ),
    Point(
        name="draft extend graph list",
        serves=(),  # without it, draft extend runs eagerly
        eras=(
            _extend_graph_era("a list of classes", "_capture_cuda_graphs", "TritonAttnBackend"),
            _extend_graph_era("a list in init_cuda_graphs", "init_cuda_graphs", "TritonAttnBackend"),
            _extend_graph_era("a list of decode classes", "init_cuda_graphs", "TritonMultiStepDraftBackend"),
            Era(name="no list", test=_no_extend_graph_list),
        ),
    ),
    Point(
        name="hybrid backend",
        serves=("selection",),
        eras=(
            Era(
                name="dispatch in one method",
                test=_has(HYBRID, "HybridAttnBackend"),
                hooks=(
                    Hook(
                        module=HYBRID,
                        attribute="HybridAttnBackend.__init__",
                        parameters=("self", "model_runner", "prefill_backend", "decode_backend"),
                    ),
                    Hook(
                        module=HYBRID,
                        attribute="HybridAttnBackend._select_backend",
                        parameters=("self", "forward_mode"),
                    ),
                ),
            ),
        ),
    ),
    Point(
        name="engine keywords",
        serves=(),
        always=True,
        eras=(
            Era(
                name="Engine(**kwargs)",
                test=_has(ENGINE, "Engine.__init__"),
                hooks=(
                    Hook(
                        module=ENGINE,
                        attribute="Engine.__init__",
                        parameters=("self",),
                        wrapper="engine:init",
                    ),
                ),
            ),
        ),
    ),
    Point(
        name="scheduler report",
        serves=(),
        eras=(
            Era(
                name="get_init_info",
                test=_has(SCHEDULER, "Scheduler.get_init_info"),
                hooks=(
                    Hook(
                        module=SCHEDULER,
                        attribute="Scheduler.get_init_info",
                        parameters=("self",),
                        wrapper="scheduler:init_info",
                    ),
                ),
            ),
            Era(name="none", test=lambda _surface: True),
        ),
    ),
    Point(
        name="scheduler state",
        serves=(),
        eras=(
            Era(
                name="get_internal_state",
                test=_has(SCHEDULER, "Scheduler.get_internal_state"),
                hooks=(
                    Hook(
                        module=SCHEDULER,
                        attribute="Scheduler.get_internal_state",
                        parameters=("self",),
                        wrapper="scheduler:internal_state",
                    ),
                ),
            ),
        ),
    ),
    _helper_point("choices helper", "add_attention_backend_choices"),
    _helper_point(
        "draft choices helper",
        "add_draft_attention_backend_choices",
        Era(name="none yet", test=_no_draft_choices),
    ),
    _process_point("scheduler process", SCHEDULER, "Scheduler", wrapper="begin_scheduler"),
    _process_point("detokenizer process", DETOKENIZER, "DetokenizerManager"),
    _process_point(
        "data-parallel process", DATA_PARALLEL, "DataParallelController", wrapper="begin_controller"
    ),
    _process_point(
        "tokenizer process",
        MULTI_TOKENIZER,
        "TokenizerWorker",
        "MultiTokenizerManager",
        wrapper="begin_tokenizer",
    ),
    Point(
        name="ranks",
        serves=("backends", "selection"),
        eras=(
            Era(
                name="a method of ModelRunner",
                test=_has(MODEL_RUNNER, "ModelRunner.init_torch_distributed"),
                hooks=(
                    Hook(
                        module=MODEL_RUNNER,
                        attribute="ModelRunner.init_torch_distributed",
                        parameters=("self",),
                        wrapper="model_runner:compare_ranks",
                    ),
                ),
            ),
        ),
    ),
    Point(
        name="draft choices",
        algorithms=_DFLASH,
        eras=(
            Era(
                name="a module of choices",
                test=_has(CHOICES, "DRAFT_ATTENTION_BACKEND_CHOICES"),
                hooks=_list_hook(CHOICES, "DRAFT_ATTENTION_BACKEND_CHOICES"),
            ),
            Era(
                name="in server_args",
                test=_has_list(SERVER_ARGS, "DRAFT_ATTENTION_BACKEND_CHOICES"),
                hooks=_list_hook(SERVER_ARGS, "DRAFT_ATTENTION_BACKEND_CHOICES"),
            ),
            Era(name="no list yet", test=_no_draft_choices),
        ),
    ),
    Point(
        name="draft resolver at argument time",
        algorithms=_DFLASH,
        eras=(
            Era(
                name="a function",
                test=_has(SPECULATIVE_HOOK, RESOLVE_DFLASH),
                hooks=(
                    Hook(
                        module=SPECULATIVE_HOOK,
                        attribute=RESOLVE_DFLASH,
                        parameters=("server_args",),
                        wrapper="speculative_hook:resolve_dflash",
                    ),
                ),
            ),
            Era(
                name="none: the worker resolves alone",
                test=_inline_in(DFLASH_WORKER, "DFlashWorker.__init__"),
            ),
            Era(
                name="none: the second worker resolves alone",
                test=_inline_in(DFLASH_WORKER_V2, "DFlashWorkerV2.__init__"),
            ),
            Era(name="no DFLASH yet", test=_no_dflash),
        ),
    ),
    Point(
        name="draft resolver at worker time",
        algorithms=_DFLASH,
        eras=(
            Era(
                name="reads the draft choices",
                test=_has(DRAFT_WORKER_COMMON, "resolve_draft_worker_attention_backend"),
                hooks=(
                    Hook(
                        module=DRAFT_WORKER_COMMON,
                        attribute="resolve_draft_worker_attention_backend",
                        parameters=("algo_label",),
                    ),
                    Hook(
                        module=DRAFT_WORKER_COMMON, attribute="DRAFT_ATTENTION_BACKEND_CHOICES", kind="import"
                    ),
                ),
            ),
            Era(
                name="reads a tuple of its own",
                test=_has(DRAFT_WORKER_COMMON, "_SUPPORTED_DRAFT_BACKENDS"),
                hooks=(
                    Hook(
                        module=DRAFT_WORKER_COMMON,
                        attribute="_resolve_draft_attention_backend_fallback",
                        parameters=("algo_label",),
                    ),
                    Hook(
                        module=DRAFT_WORKER_COMMON,
                        attribute="_SUPPORTED_DRAFT_BACKENDS",
                        kind="tuple",
                        edit="draft_worker_common:extend",
                    ),
                ),
            ),
            Era(
                name="reads the draft choices, first name",
                test=_has(DRAFT_WORKER_COMMON, "_resolve_draft_attention_backend_fallback"),
                hooks=(
                    Hook(
                        module=DRAFT_WORKER_COMMON,
                        attribute="_resolve_draft_attention_backend_fallback",
                        parameters=("algo_label",),
                    ),
                    Hook(
                        module=DRAFT_WORKER_COMMON, attribute="DRAFT_ATTENTION_BACKEND_CHOICES", kind="import"
                    ),
                ),
            ),
            _constructor_era(DFLASH_WORKER, "DFlashWorker.__init__"),
            _constructor_era(DFLASH_WORKER_V2, "DFlashWorkerV2.__init__"),
            Era(
                name="none: the argument-time resolver decides alone",
                test=_worker_makes_its_runner,
            ),
            Era(name="no DFLASH yet", test=_no_dflash),
        ),
    ),
)


_DRAFT_MAPS = next(point for point in POINTS if point.name == "draft maps")


def needed(purposes: Collection[Purpose], *, algorithm: str | None = None) -> tuple[Point, ...]:
    """The points that *purposes* need, and *algorithm*, the speculative algorithm of this launch, when it is known."""
    return tuple(
        point
        for point in POINTS
        if {*purposes} & {*point.serves} and (point.algorithms is None or algorithm in point.algorithms)
    )


def verify(
    surface: Surface, purposes: Collection[Purpose], *, algorithm: str | None = None
) -> list[Mismatch]:
    """Every hook that *purposes* need and *surface* does not match.

    Args:
        surface: The release.
        purposes: What the hooks are needed for.
        algorithm: The speculative algorithm of this launch, when it is known.
    """
    return [m for point in needed(purposes, algorithm=algorithm) for m in mismatches(point, surface)]


def named(names: Collection[str]) -> frozenset[Point]:
    """The points that ``SGLANG_DRAFT_EXT_DISABLE`` names, as it writes them: ``draft-maps``.

    Raises:
        SettingsError: there is no such point, with the nearest name and the full list.
    """
    known = {point.slug: point for point in POINTS}
    for name in names:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            raise SettingsError(
                f"{name!r} is not a hook" + (f" (did you mean {nearest[0]!r}?)" if nearest else ""),
                where=DISABLE,
                remedy=f"choose from {', '.join(sorted(known))}",
            )
    return frozenset(known[name] for name in names)


def map_definitions(surface: Surface, role: Literal["extend", "decode"]) -> tuple[Definition, ...]:
    """The method that holds the release's map for *role*."""
    era = _DRAFT_MAPS.era(surface)
    wrapper = f"draft_utils:for_{role}"
    found = (surface.get(h.module, h.attribute) for h in (era.hooks if era else ()) if h.wrapper == wrapper)
    return tuple(definition for definition in found if definition)


def map_owner(surface: Surface) -> tuple[str, str]:
    """The module and the class that hold the release's maps."""
    era = _DRAFT_MAPS.era(surface)
    hook = next(hook for hook in (era.hooks if era else _factory_hooks("pair")) if hook.wrapper)
    return hook.module, hook.attribute.partition(".")[0]


def choices(surface: Surface) -> tuple[str, ...]:
    """The attention backend names that the release's command line takes, read from its source."""
    found = surface.get(CHOICES, "ATTENTION_BACKEND_CHOICES") or surface.get(
        SERVER_ARGS, "ATTENTION_BACKEND_CHOICES"
    )
    return found.constants[0] if found and found.constants else ()
