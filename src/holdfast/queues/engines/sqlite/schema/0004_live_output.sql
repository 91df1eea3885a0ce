-- The output of running attempts: the latest report of each delivery whose attempt has not recorded its output. `start`
-- is the number of bytes printed before it.
CREATE TABLE holdfast_live_output (
    seq      INTEGER NOT NULL,
    delivery INTEGER NOT NULL,
    start    INTEGER NOT NULL,
    text     TEXT    NOT NULL,
    PRIMARY KEY (seq, delivery)
) STRICT;
