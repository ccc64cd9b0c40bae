"""The operations on a queue, as values: each has its arguments and the rule by which it changes a state.

Direct and broker queues differ only in the number of operations in one commit.
"""
