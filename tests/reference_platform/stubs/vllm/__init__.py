"""Just those modules of vllm that some releases import on a device they do not know; the rest stays missing."""
