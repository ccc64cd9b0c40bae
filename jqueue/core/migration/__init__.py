"""The move of jobs from one queue to another."""
