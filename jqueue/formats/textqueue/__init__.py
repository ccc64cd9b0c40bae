"""The format of TextQueue: one text file for all jobs."""
