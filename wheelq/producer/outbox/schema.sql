-- What an outbox file holds. `seq` is the order in which jobs were kept, and in which they are delivered.
BEGIN IMMEDIATE; -- another process may open the file meanwhile
CREATE TABLE IF NOT EXISTS jobs (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    topic         TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    due_ms        INTEGER NOT NULL,
    priority      TEXT    NOT NULL, -- "h", "l", or "" for a normal one
    record        BLOB    NOT NULL,
    partition_key TEXT,
    on_duplicate  TEXT    NOT NULL,
    kept_ms       INTEGER NOT NULL,
    -- the call from which due_ms counts by this machine's clock; NULL if it needs no correction
    asked_ms      INTEGER,
    asked_uptime  REAL,
    asked_boot_id TEXT,
    -- the call that takes it to the server, fixed before it is sent; NULL until then
    tag           BLOB,
    shard         INTEGER,
    terms         TEXT,
    turn_ms       INTEGER
);
CREATE INDEX IF NOT EXISTS by_topic ON jobs (topic, seq);
CREATE INDEX IF NOT EXISTS by_id ON jobs (topic, id);

-- What the server refused for good, and why.
CREATE TABLE IF NOT EXISTS rejected (
    seq         INTEGER PRIMARY KEY,
    topic       TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    due_ms      INTEGER NOT NULL,
    record      BLOB    NOT NULL,
    error       TEXT    NOT NULL,
    rejected_ms INTEGER NOT NULL
);

-- One row: how much the file holds, kept by triggers, so that a limit costs no scan.
CREATE TABLE IF NOT EXISTS held (only INTEGER PRIMARY KEY CHECK (only = 1), jobs INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO held VALUES (1, 0, 0);
CREATE TRIGGER IF NOT EXISTS one_more AFTER INSERT ON jobs
    BEGIN UPDATE held SET jobs = jobs + 1, bytes = bytes + length(NEW.record); END;
CREATE TRIGGER IF NOT EXISTS one_less AFTER DELETE ON jobs
    BEGIN UPDATE held SET jobs = jobs - 1, bytes = bytes - length(OLD.record); END;
PRAGMA user_version = 2;
COMMIT;
