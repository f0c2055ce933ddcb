"""Scripts run to look at what they would do: `plan`, `adopt`, `audit`."""
