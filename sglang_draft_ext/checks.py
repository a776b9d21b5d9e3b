"""Whether the backends chosen for a draft can do what this launch asks of them, before a model is loaded."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from sglang_draft_ext import build, hooks, limits
from sglang_draft_ext.errors import BackendError, DraftExtError, SelectionError
from sglang_draft_ext.launch import FLAG, MULTI_STEP, Plan, asked_roles, check_names
from sglang_draft_ext.limits import Limits
from sglang_draft_ext.registry import registry
from sglang_draft_ext.selection import ROLES, Role
from sglang_draft_ext.workers import multi_layer_asks, multi_layer_prepares

LLAMA_EAGLE3 = "sglang.srt.models.llama_eagle3"
QSA_CONFIG = "sglang.srt.layers.attention.qsa.config"


class Launch:
    """One launch's server arguments as resolved, and its draft model's configuration, read when first asked for."""

    def __init__(self, server_args: Any, config: Any) -> None:
        self.server_args = server_args
        self.config = config
        self.algorithm: str = config.speculative_algorithm
        self.topk: int = config.speculative_eagle_topk or 1
        self.page_size: int = config.page_size or 1
        self.multi_layer = bool(getattr(config, "enable_multi_layer_eagle", False))
        self.unified_memory = bool(getattr(config, "enable_unified_memory", False))

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that get a backend of their own."""
        one_step = (self.config.speculative_num_steps or 0) <= 1
        return ("prefill", "extend") if one_step or self.multi_layer else ROLES

    @cached_property
    def draft(self) -> Any:
        """The draft's ``ModelConfig``."""
        from sglang.srt.configs.model_config import ModelConfig

        return ModelConfig.from_server_args(
            self.server_args,
            model_path=self.config.speculative_draft_model_path,
            model_revision=self.config.speculative_draft_model_revision,
            is_draft_model=True,
        )

    @cached_property
    def draft_uses_mla(self) -> bool:
        from sglang.srt.configs.model_config import AttentionArch

        return bool(self.draft.attention_arch == AttentionArch.MLA)

    @property
    def windowed(self) -> bool:
        """Whether the draft's decode keeps to ``--speculative-draft-window-size``."""
        from sglang_draft_ext import multistep  # not before it is needed

        given = getattr(self.config, "speculative_draft_window_size", None)
        honoured = hooks.activation.surface.get(multistep.SPEC_UTILS, multistep.DRAFT_WINDOW)
        return bool(given and honoured and not self.draft_has_window)

    @cached_property
    def draft_has_window(self) -> bool:
        """Whether the draft model may attend in a window of its own: SGLang then leaves the flag's out of its decode.

        A configuration may name a window that the model does not use: then the refusal is left to the draft worker.
        """
        # These give their layers the flag's window.
        for_layers = (
            hooks.activation.surface.get(LLAMA_EAGLE3, name)
            for name in self.draft.hf_config.architectures or ()
        )
        return bool(self.draft.sliding_window_size or self.draft.attention_chunk_size or any(for_layers))

    @cached_property
    def draft_has_qsa_profile(self) -> bool:
        if hooks.activation.surface.get(QSA_CONFIG, "parse_qsa_profile") is None:
            return False
        from sglang.srt.layers.attention.qsa.config import parse_qsa_profile

        return parse_qsa_profile(self.draft.hf_config) is not None


def check(launch: Launch, made: Plan) -> None:
    """Refuse what cannot be done.

    Raises:
        BackendError: with the limit and the flag to change.
        SelectionError: the algorithm does not have the roles that are named, or a name cannot do its role.
    """
    if asked_roles(made):
        _check_roles(launch, made)
        _check_qsa(launch, made)
    _check_worker(launch, made)
    _check_target(launch, made)
    for role in launch.roles:
        problem = refusal(launch, getattr(made.selection, role), role, where=made.sources[role])
        if problem:
            raise problem


def refusal(launch: Launch, name: str | None, role: Role, *, where: str) -> DraftExtError | None:
    """Why *name* cannot do *role* in this launch; None if it can.

    Args:
        launch: The launch.
        name: None where the release decides on the target's backend only after the arguments.
        role: The role.
        where: Where the name comes from.
    """
    if name is None or (launch.algorithm not in MULTI_STEP and name not in registry):
        return None
    try:
        check_names({role: name}, {role: where}, launch.algorithm)
    except SelectionError as error:
        return error
    if name in registry:
        limit = limits.declared(build.declared(name))
        problem = _over_the_limits(launch, name, role, limit, registry.where(name))
        if problem or role != "decode" or launch.algorithm not in MULTI_STEP or not build.makes_decode(name):
            return problem
        from sglang_draft_ext import multistep

        return multistep.refusal(
            topk=launch.topk,
            page_size=launch.page_size,
            windowed=launch.windowed,
            unified=launch.unified_memory,
            encoder_decoder=launch.draft.is_encoder_decoder,
        )
    return _over_the_limits(launch, name, role, limits.of_release(hooks.activation.surface, name), where)


def _over_the_limits(launch: Launch, name: str, role: Role, limit: Limits, where: str) -> BackendError | None:
    backend = f"Draft backend {name!r}"
    if limit.mla != "any" and launch.draft_uses_mla != (limit.mla == "required"):
        return build.mla_error(name, limit.mla, launch.draft_uses_mla, where=where)
    if limit.page_sizes is not None and launch.page_size not in limit.page_sizes:
        sizes = ", ".join(map(str, limit.page_sizes))
        return BackendError(
            f"{backend} reads KV pages of {sizes} tokens only",
            where=where,
            found=f"page size {launch.page_size}",
            remedy=f"set --page-size to one of {sizes}",
        )
    if limit.max_head_dim is not None and launch.draft.head_dim > limit.max_head_dim:
        return BackendError(
            f"{backend} attends with heads of at most {limit.max_head_dim} dimensions",
            where=where,
            found=f"the draft model's heads have {launch.draft.head_dim}",
            remedy="choose another draft attention backend",
        )
    if role != "decode" or launch.topk == 1 or launch.algorithm not in MULTI_STEP:
        return None
    found = f"--speculative-eagle-topk {launch.topk}"
    most = limit.max_topk
    if limit.max_topk_mla is not None and launch.draft_uses_mla:
        most = limit.max_topk_mla
    if most is not None and launch.topk > most:
        return BackendError(
            f"{backend} drafts at most topk {most}",
            where=where,
            found=found,
            remedy=f"set --speculative-eagle-topk {most}{' or less' * (most > 1)}",
        )
    if not limit.tree_pages and launch.page_size > 1:
        return BackendError(
            f"{backend} drafts topk > 1 over KV pages of one token only",
            where=where,
            found=f"{found}, page size {launch.page_size}",
            remedy="set --speculative-eagle-topk 1 or --page-size 1",
        )
    return None


def _check_roles(launch: Launch, made: Plan) -> None:
    """Refuse roles that the algorithm does not have."""
    if "=" not in str(made.selection):
        return
    if launch.algorithm not in MULTI_STEP:
        raise SelectionError(
            f"{launch.algorithm} drafts on one backend and has no roles to select",
            where=_where(made),
            found=str(made.selection),
            remedy=f"name one backend: {FLAG} NAME",
        )
    if launch.multi_layer and "decode" in asked_roles(made):
        raise SelectionError(
            "Multi-layer EAGLE has no draft decode",
            where=made.sources["decode"],
            found=str(made.selection),
            remedy="select prefill and extend only",
        )


def _where(made: Plan) -> str:
    return ", ".join(dict.fromkeys(made.sources[role] for role in asked_roles(made)))


def _check_qsa(launch: Launch, made: Plan) -> None:
    """Refuse what stock would not look at: a draft with a QSA profile gets one backend, whatever is asked for."""
    if launch.algorithm not in MULTI_STEP:
        return
    names = {getattr(made.selection, role) for role in asked_roles(made)}
    if names != {"qsa"} and launch.draft_has_qsa_profile:
        raise BackendError(
            "SGLang drafts with qsa for a draft model that has a QSA profile, whatever is asked for",
            where=_where(made),
            found=str(made.selection),
            remedy="leave the selection out",
        )
    if "qsa" in names and not launch.draft_has_qsa_profile:
        raise BackendError(
            "'qsa' drafts for models with a QSA profile only",
            where=_where(made),
            found="the draft model has none",
            remedy="choose another draft attention backend",
        )


def _check_target(launch: Launch, made: Plan) -> None:
    """Refuse a target that cannot verify: its backend takes the drafted tokens for a prompt without a prefix."""
    config = launch.config
    mode = "decode" if config.speculative_attention_mode == "decode" else "prefill"
    name = getattr(config, f"{mode}_attention_backend") or config.attention_backend
    if name is None or limits.can_verify(hooks.activation.surface, name):
        return
    able = made.selection.decode
    raise BackendError(
        f"{name!r} cannot be the target's backend in speculative decoding: it does not verify drafted tokens",
        where=f"--{mode}-attention-backend or --attention-backend",
        found=name,
        remedy=f"give the target another one, and the draft this one: --attention-backend triton {FLAG} {name}"
        if able == name
        else "set --attention-backend triton",
    )


def _check_worker(launch: Launch, made: Plan) -> None:
    """Refuse a worker that would not ask for the backend that was asked for."""
    chosen, config = made.selection, launch.config
    names = [name for name in (chosen.prefill, chosen.extend, chosen.decode) if name in registry]
    if not names and not ("=" in str(chosen) and asked_roles(made)):
        return
    asked_for = registry.where(names[0]) if names else FLAG
    surface, overlap = hooks.activation.surface, not config.disable_overlap_schedule
    if launch.multi_layer and overlap and not multi_layer_asks(surface):
        raise BackendError(
            "Multi-layer EAGLE with overlap schedule is hard-coded to FlashAttention in this release",
            where=asked_for,
            found=str(chosen),
            remedy="set --disable-overlap-schedule",
        )
    eager = chosen.extend in registry and (
        getattr(config, "disable_cuda_graph", False)
        or (build.makes_decode(chosen.extend) and not build.declared(chosen.extend).extend_graph)
    )
    if launch.multi_layer and eager and not multi_layer_prepares(surface, overlap=overlap):
        raise BackendError(
            "Multi-layer EAGLE prepares draft extend for CUDA graphs only in this release, and "
            f"{chosen.extend!r} runs outside of them",
            where=registry.where(chosen.extend),
            found=str(chosen),
            remedy="use SGLang 0.5.16 or newer, or CUDA graphs with a draft extend backend that is captured",
        )
    if names and launch.algorithm == "FROZEN_KV_MTP" and launch.topk > 1:
        raise BackendError(
            f"Frozen-KV MTP drafts topk > 1 on backends of its own list only, not on {names[0]!r}",
            where=asked_for,
            found=f"--speculative-eagle-topk {launch.topk}",
            remedy="set --speculative-eagle-topk 1",
        )
