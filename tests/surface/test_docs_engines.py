"""What docs/engines.md says of engines is what their code says: the tables between its marks are made of it."""

import re
from pathlib import Path

import msgspec
import pytest

from holdfast.queues.capabilities import MEANINGS, answers
from holdfast.queues.contract import Capabilities
from holdfast.queues.engines.kinds import ALIASES, KINDS
from holdfast.queues.engines.memory import connections as memory
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.queues.engines.memory.sync import SyncEngine
from holdfast.queues.engines.mysql import address as mysql_address, connections as mysql_connections
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.queues.engines.postgres import connections as postgres_connections
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.engines.redis import connections as redis_connections
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.queues.engines.sqlite import connections as sqlite_file
from holdfast.queues.engines.sqlite.engine import SqliteEngine

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
ENGINES = {
    "sqlite": SqliteEngine.capabilities,
    "postgresql": PostgresEngine.capabilities,
    "mysql": MysqlEngine.capabilities,
    "redis": RedisEngine.capabilities,
    "memory": MemoryEngine.capabilities,
    "sync": SyncEngine.capabilities,
}
DURABILITY = {
    "`sqlite`": sqlite_file.DURABILITY,
    "`postgresql`": postgres_connections.DURABILITY,
    "`mysql`": mysql_connections.DURABILITY,
    "`redis`": redis_connections.DURABILITY,
    "`memory`, `sync`": memory.DURABILITY,
}


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def capabilities_table() -> str:
    lines = [row("Capability", *(f"`{name}`" for name in ENGINES), "Meaning"), f"|{'---|' * (len(ENGINES) + 2)}\n"]
    told = {name: answers(capabilities) for name, capabilities in ENGINES.items()}
    lines += [row(f"`{name}`", *(told[engine][name] for engine in ENGINES), MEANINGS[name]) for name in MEANINGS]
    return "".join(lines)


def durability_table() -> str:
    lines = [row("Engine", "Set up with", "An accepted job survives"), "|---|---|---|\n"]
    lines += [
        row(engine, setup, f"{survives}.")
        for engine, setups in DURABILITY.items()
        for setup, survives in setups.items()
    ]
    return "".join(lines)


@pytest.mark.parametrize(
    ("name", "table"),
    [("capabilities", capabilities_table()), ("durability", durability_table())],
    ids=lambda x: x[:12],
)
def test_a_table_of_the_page_is_what_the_code_says(name: str, table: str) -> None:
    found = re.search(rf"^<!-- {name}: made of the code -->\n(.*?)^<!-- end -->$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert found[1] == table, f"write this between the marks:\n{table}"


def test_every_engine_and_every_capability_is_told() -> None:
    assert tuple(ENGINES) == tuple(KINDS)
    assert tuple(MEANINGS) == Capabilities.__struct_fields__
    for capabilities in ENGINES.values():
        assert tuple(answers(capabilities)) == Capabilities.__struct_fields__


def test_every_way_to_begin_a_url_is_told() -> None:
    for name in (*KINDS, *ALIASES):
        assert re.search(rf"`{name}:", PAGE), name


def test_every_option_of_a_mysql_url_is_told() -> None:
    section = PAGE.partition("`mysql:` has these options")[2].partition("other engines")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(mysql_address.OPTIONS)


@pytest.mark.parametrize(
    ("size", "resolution", "told"),
    [(65_536, 1.0, ("64 KiB", "1 s")), (262_144_000, 0.001, ("250 MiB", "1 ms")), (999, 1e-6, ("999 bytes", "1 µs"))],
)
def test_sizes_and_spans_are_in_units_people_use(size: int, resolution: float, told: tuple[str, str]) -> None:
    changed = msgspec.structs.replace(ENGINES["memory"], max_wire_bytes=size, delay_resolution_s=resolution)
    assert (answers(changed)["max_wire_bytes"], answers(changed)["delay_resolution_s"]) == told
