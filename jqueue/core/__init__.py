"""The compare-and-set engine and the queues built on it."""
