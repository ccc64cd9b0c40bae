"""The version, in the one place that holds it."""

__version__ = "2.0.0"
