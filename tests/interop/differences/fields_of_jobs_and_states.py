"""`Job` and `QueueState` have more fields: `model_dump` and equality show them; a state can no longer be hashed

Why: attempts, limits, schedules, results and commits are part of the state

1.0.0: 7 fields, 2 fields, hashable
2.0.0: 29 fields, 17 fields, not hashable
"""

from jqueue import Job, QueueState

try:
    hash(QueueState())
    hashable = "hashable"
except TypeError:
    hashable = "not hashable"
print(f"{len(Job.model_fields)} fields, {len(QueueState.model_fields)} fields, {hashable}")
