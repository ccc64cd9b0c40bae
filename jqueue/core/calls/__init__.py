"""Calls on their way: from the verb that was called to the engine, and the answer back."""
