-- The output of running attempts: the latest report of each delivery whose attempt has not recorded its output. `start`
-- is the number of bytes printed before it.
CREATE TABLE holdfast.live_output (
    seq      bigint  NOT NULL,
    delivery integer NOT NULL,
    start    bigint  NOT NULL,
    text     text    NOT NULL,
    PRIMARY KEY (seq, delivery)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
