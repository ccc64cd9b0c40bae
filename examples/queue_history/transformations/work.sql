-- Each day of each entrypoint: what was done, as the events tell. An event of many jobs counts as many times.
CREATE MATERIALIZED VIEW work AS
SELECT
  day,
  queue,
  entrypoint,
  sum(CASE WHEN verb = 'enqueue' THEN jobs ELSE 0 END) AS enqueued,
  sum(CASE WHEN verb = 'ack' THEN jobs ELSE 0 END) AS done,
  sum(CASE WHEN verb IN ('nack', 'stale') THEN jobs ELSE 0 END) AS failed,
  sum(CASE WHEN before = 'in_progress' AND after = 'dead' THEN jobs ELSE 0 END) AS dead,
  percentile(CASE WHEN verb = 'dequeue' THEN wait_seconds END, 0.95, jobs) AS p95_wait,
  percentile(CASE WHEN verb = 'ack' THEN run_seconds END, 0.95, jobs) AS p95_run
FROM (SELECT DISTINCT * EXCEPT (run) FROM events)
WHERE entrypoint IS NOT NULL
GROUP BY day, queue, entrypoint;
