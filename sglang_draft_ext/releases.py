"""The SGLang releases that this version was tested on. Nothing is decided by them; on any other there is a warning."""

# Oldest first. `scripts/releases.json` locks the wheel of each, and the workflows are generated from here.
# fmt: off
TESTED = (
    "0.5.2",
    "0.5.3", "0.5.3.post1", "0.5.3.post2", "0.5.3.post3",
    "0.5.4", "0.5.4.post1", "0.5.4.post2", "0.5.4.post3",
    "0.5.5", "0.5.5.post1", "0.5.5.post2", "0.5.5.post3",
    "0.5.6", "0.5.6.post1", "0.5.6.post2",
    "0.5.7",
    "0.5.8", "0.5.8.post1",
    "0.5.9",
    "0.5.10", "0.5.10.post1",
    "0.5.11",
    "0.5.12", "0.5.12.post1",
    "0.5.13", "0.5.13.post1",
    "0.5.14",
    "0.5.15", "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
# fmt: on
