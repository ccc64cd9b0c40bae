"""Queues in the format of vsqs: a folder with a file for each job."""
