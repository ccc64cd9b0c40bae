"""The jobs of one queue moved to another."""
