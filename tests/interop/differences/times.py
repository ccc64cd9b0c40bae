"""Times have a time zone and are in UTC

Why: times without a zone cannot be compared with others

1.0.0: 2024-01-01 12:00:00
1.0.0: 2024-01-01 12:00:00+02:00
2.0.0: 2024-01-01 12:00:00+00:00
2.0.0: 2024-01-01 10:00:00+00:00
"""

from datetime import datetime, timedelta, timezone

from jqueue import Job

for zone in (None, timezone(timedelta(hours=2))):
    print(Job(entrypoint="task", payload=b"", created_at=datetime(2024, 1, 1, 12, tzinfo=zone)).created_at)
