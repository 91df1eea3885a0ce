"""Names out of the embedded file, for whoever cannot wait until the engine is loaded: the shell that completes a word.

Every statement looks at a bounded number of rows, whatever the file holds, on a connection that only reads.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

NEWEST: Final = 50
LOOKED_AT: Final = 500
PATIENCE_S: Final = 0.05

# From one queue to the next in the index of what is ready; of finished jobs, the latest of each state.
_QUEUES: Final = f"""
    WITH RECURSIVE waiting(queue) AS (
        SELECT (SELECT min(queue) FROM holdfast_jobs INDEXED BY holdfast_jobs_ready WHERE state <= 1)
        UNION ALL
        SELECT (SELECT min(j.queue) FROM holdfast_jobs AS j INDEXED BY holdfast_jobs_ready
            WHERE j.state <= 1 AND j.queue > waiting.queue)
        FROM waiting WHERE waiting.queue IS NOT NULL)
    SELECT queue FROM waiting WHERE queue IS NOT NULL
    UNION SELECT queue FROM holdfast_jobs WHERE state = 2
    UNION SELECT * FROM (SELECT queue FROM holdfast_jobs WHERE state >= 4 AND state = 4
        ORDER BY finished_at DESC LIMIT {LOOKED_AT})
    UNION SELECT * FROM (SELECT queue FROM holdfast_jobs WHERE state >= 4 AND state = 5
        ORDER BY finished_at DESC LIMIT {LOOKED_AT})
    UNION SELECT * FROM (SELECT queue FROM holdfast_jobs WHERE state >= 4 AND state = 6
        ORDER BY finished_at DESC LIMIT {LOOKED_AT})
    UNION SELECT queue FROM holdfast_pauses
    ORDER BY 1"""
NAMES: Final = {
    "queues": _QUEUES,
    "jobs": f"""
        SELECT DISTINCT job FROM (SELECT job FROM holdfast_jobs WHERE state < 7 ORDER BY seq DESC LIMIT {LOOKED_AT})
        ORDER BY 1""",
    "ids": f"SELECT id FROM holdfast_jobs WHERE state < 7 ORDER BY seq DESC LIMIT {NEWEST}",
    "dead": f"""
        SELECT id FROM holdfast_jobs WHERE state >= 4 AND state = 5
        ORDER BY finished_at DESC, seq DESC LIMIT {NEWEST}""",
    "workers": "SELECT key FROM holdfast_cells WHERE kind = 'workers' ORDER BY version DESC",
}


def glance(path: Path, prefix: str, kind: str) -> list[str]:
    """The names of that kind; an error of SQLite's, if this is no file of ours."""
    address = f"file:{quote(str(path))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=PATIENCE_S)) as connection:
        return [name for (name,) in connection.execute(NAMES[kind].replace("holdfast_", prefix))]
