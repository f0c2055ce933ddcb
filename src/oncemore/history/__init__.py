"""The history of runs: which checkpoints are valid (timeline.py), and how to read and change it."""
