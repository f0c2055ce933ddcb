"""Progress reports of runs."""
