-- What an attempt has printed while it ran: the latest report of each delivery that made one and has not told its
-- output itself yet. `start` is how many bytes it had printed before that.
CREATE TABLE holdfast_live_output (
    seq      INTEGER NOT NULL,
    delivery INTEGER NOT NULL,
    start    INTEGER NOT NULL,
    text     TEXT    NOT NULL,
    PRIMARY KEY (seq, delivery)
) STRICT;
