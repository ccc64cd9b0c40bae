"""Jobs from DataFrames and streams: each row a job, all rows of a write in one commit."""
