"""The one runner: a run from its data to its report, whatever its task."""
