"""Jobs of a queue as the micro-batches of a streaming query."""
