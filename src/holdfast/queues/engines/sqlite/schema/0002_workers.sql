-- The progress of running jobs: only the latest report.
CREATE TABLE holdfast_progress (
    seq      INTEGER PRIMARY KEY,
    delivery INTEGER NOT NULL,
    done     REAL    NOT NULL,
    total    REAL,
    message  TEXT    NOT NULL,
    at       INTEGER NOT NULL
) STRICT;

-- The registry of workers, for operators: no job depends on it. `report` is JSON, written by the worker's version of
-- Holdfast. The worker is lost from `lost_at` on, unless it sends another heartbeat.
CREATE TABLE holdfast_workers (
    id         TEXT PRIMARY KEY,
    heard_at   INTEGER NOT NULL,
    lost_at    INTEGER NOT NULL,
    stop_order TEXT,
    report     TEXT    NOT NULL
) STRICT;
