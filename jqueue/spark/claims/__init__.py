"""The claims of batches and of streaming queries, and the outcomes by which they end."""
