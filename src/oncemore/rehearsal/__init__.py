"""Dry runs of scripts: `plan`, `adopt`, `audit`."""
