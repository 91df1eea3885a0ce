-- What an attempt has printed while it ran: the latest report of each delivery that made one and has not told its
-- output itself yet. `start` is how many bytes it had printed before that.
CREATE TABLE holdfast.live_output (
    seq      bigint  NOT NULL,
    delivery integer NOT NULL,
    start    bigint  NOT NULL,
    text     text    NOT NULL,
    PRIMARY KEY (seq, delivery)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
