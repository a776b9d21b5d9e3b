"""The changes themselves, one module per stock module changed, named like it; `hooks` declares where they go."""
