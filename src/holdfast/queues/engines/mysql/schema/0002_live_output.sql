-- The output of running attempts: the latest report of each delivery whose attempt has not recorded its output. `start`
-- is the number of bytes printed before it.
CREATE TABLE IF NOT EXISTS holdfast_live_output (
    seq      BIGINT   NOT NULL,
    delivery INT      NOT NULL,
    start    BIGINT   NOT NULL,
    text     LONGTEXT NOT NULL,
    PRIMARY KEY (seq, delivery)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;
