"""The way of a call from its verb to the engine, and of its answer back."""
