"""Implementations of the ports: the system's clock, and one file per store."""
