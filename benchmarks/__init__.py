"""Benchmarks of the queue against its own first release, other queues and the limit of the disk."""
