"""The formats of dirq: a file (simple) or a folder (queue) for each job."""
