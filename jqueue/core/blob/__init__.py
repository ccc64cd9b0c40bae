"""A queue in one object: its bytes, and the engine that replaces them by compare-and-set."""
