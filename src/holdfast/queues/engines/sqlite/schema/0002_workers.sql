-- How far a running job says it is: the latest report of its latest delivery that made one.
CREATE TABLE holdfast_progress (
    seq      INTEGER PRIMARY KEY,
    delivery INTEGER NOT NULL,
    done     REAL    NOT NULL,
    total    REAL,
    message  TEXT    NOT NULL,
    at       INTEGER NOT NULL
) STRICT;

-- Which workers there are, for people only: no job depends on it. `report` is JSON, as the worker's own version of
-- Holdfast writes it. From `lost_at` on the worker counts as lost, unless it is heard again.
CREATE TABLE holdfast_workers (
    id         TEXT PRIMARY KEY,
    heard_at   INTEGER NOT NULL,
    lost_at    INTEGER NOT NULL,
    stop_order TEXT,
    report     TEXT    NOT NULL
) STRICT;
