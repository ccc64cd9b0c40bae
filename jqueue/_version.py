"""The version of jqueue. No other file holds it."""

__version__ = "2.0.0"
