"""`run_batch`: a worker's handlers on executors."""
