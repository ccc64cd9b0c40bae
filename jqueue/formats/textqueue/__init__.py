"""Queues in the format of TextQueue: one text file for all jobs."""
