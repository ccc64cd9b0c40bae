-- Each day of each entrypoint: how it was at its worst, and how it ended.
CREATE MATERIALIZED VIEW daily AS
SELECT
  to_date(taken_at) AS day,
  queue,
  entrypoint,
  count(DISTINCT taken_at) AS runs,
  max(ready) AS most_ready,
  max(oldest_age) AS oldest_age,
  max(in_progress) AS most_in_progress,
  max(stale) AS most_stale,
  max_by(ready, taken_at) AS ready,
  max_by(scheduled, taken_at) AS scheduled,
  max_by(dead, taken_at) AS dead,
  max_by(median_turnaround, taken_at) AS median_turnaround,
  max_by(p95_turnaround, taken_at) AS p95_turnaround
FROM history
GROUP BY day, queue, entrypoint;
