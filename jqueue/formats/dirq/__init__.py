"""Queues in the two formats of dirq: a file (simple) or a folder (queue) for each job."""
