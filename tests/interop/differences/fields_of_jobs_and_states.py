"""`Job` and `QueueState` have more fields: `model_dump` and equality show them; a state can no longer be hashed

Why: attempts, limits, schedules, results and commits are part of the state

1.0.0: 7 fields, 2 fields, hashable
2.0.0: more fields, more fields, not hashable
"""

from jqueue import Job, QueueState

try:
    hash(QueueState())
    hashable = "hashable"
except TypeError:
    hashable = "not hashable"
numbers = (len(model.model_fields) for model in (Job, QueueState))
print(*(f"{number if number < 10 else 'more'} fields," for number in numbers), hashable)
