"""The past of runs: which checkpoints count (history/timeline.py), and what can be read and changed of it."""
