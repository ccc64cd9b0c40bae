"""One version of a queue, or of each queue of a fleet, as a table."""
