"""The format of vsqs: a file for each job."""
