-- The figures of the last run.
CREATE MATERIALIZED VIEW latest AS
SELECT DISTINCT * EXCEPT (run)
FROM history
WHERE taken_at = (SELECT max(taken_at) FROM history);
