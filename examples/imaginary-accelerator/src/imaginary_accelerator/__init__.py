"""What this package offers SGLang. Imported when server arguments are parsed: no SGLang and no torch here."""

from sglang_draft_ext import DraftBackend

BACKEND = DraftBackend(
    name="imaginary",
    attention="imaginary_accelerator.backend:ImaginaryAttnBackend",
    mla="refused",
)
