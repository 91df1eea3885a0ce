-- What an attempt has printed while it ran: the latest report of each delivery that made one and has not told its
-- output itself yet. `start` is how many bytes it had printed before that.
CREATE TABLE IF NOT EXISTS holdfast_live_output (
    seq      BIGINT   NOT NULL,
    delivery INT      NOT NULL,
    start    BIGINT   NOT NULL,
    text     LONGTEXT NOT NULL,
    PRIMARY KEY (seq, delivery)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;
