"""A job in the caller's own transaction, whatever the caller has in hand: drivers, SQLAlchemy, Django."""

import itertools
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from holdfast import Holdfast
from holdfast.errors import IdConflict, TransactionRefused, UnknownJob
from holdfast.values import JobState

from ..servers.mysql import MariadbServer
from ..servers.postgres import PostgresServer
from ..servers.running import started


def untyped(name: str) -> Any:
    """A module whose types are not the matter here."""
    return import_module(name)


pymysql, connector = untyped("pymysql"), untyped("mysql.connector")
psycopg, psycopg2 = untyped("psycopg"), untyped("psycopg2")
django_db = untyped("django.db")
KEY = "0123456789abcdef0123456789abcdef"
PLACES = ["sqlite", "postgres", "mysql"]
_numbers = itertools.count(1)


class Place:
    """A database with Holdfast's tables and one of the caller's own."""

    def __init__(self, url: str, name: str, options: dict[str, Any]) -> None:
        self.hf = Holdfast(url, signing_key=KEY)
        self.hf.create_schema()
        self.name = name
        self.options = options
        """How a driver is to connect."""
        self.table = f"orders{next(_numbers)}"

        @self.hf.job
        def ship(order: int) -> None: ...

        self.ship = ship

    def orders(self) -> int:
        """The number of committed orders."""
        with self.plain() as connection:
            cursor = connection.cursor()
            cursor.execute(f"SELECT count(*) FROM {self.table}")
            (number,) = cursor.fetchone()
            return int(number)

    def knows(self, job_id: str) -> bool:
        try:
            return self.hf.handle(job_id).status() is JobState.PENDING
        except UnknownJob:
            return False

    @contextmanager
    def plain(self) -> Generator[Any]:
        connect: dict[str, Callable[..., Any]] = {
            "sqlite": sqlite3.connect,
            "postgres": psycopg.connect,
            "mysql": pymysql.connect,
        }
        with closing(connect[self.name](**self.options)) as connection:
            yield connection

    def insert(self, number: int) -> str:
        return f"INSERT INTO {self.table} VALUES ({number})"


@pytest.fixture(scope="module")
def postgres() -> Generator[PostgresServer]:
    server = started(PostgresServer)
    yield server
    server.close()


@pytest.fixture(scope="module")
def mariadb() -> Generator[MariadbServer]:
    server = started(MariadbServer)
    yield server
    server.close()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Place]:
    match request.param:
        case "sqlite":
            place = Place(f"sqlite:///{tmp_path / 'app.db'}", "sqlite", {"database": tmp_path / "app.db"})
        case "postgres":
            server = request.getfixturevalue("postgres")
            place = Place(server.url, "postgres", {"host": "127.0.0.1", "port": server.port, "user": "postgres"})
        case _:
            server = request.getfixturevalue("mariadb")
            with server.connect("holdfast") as connection:
                user, database = connection.user, "holdfast"
            user = user.decode() if isinstance(user, bytes) else user
            options = {"host": "127.0.0.1", "port": server.port, "user": user, "database": database}
            place = Place(server.url, "mysql", options)
    with place.plain() as connection:
        connection.cursor().execute(f"CREATE TABLE {place.table} (number int)")
        connection.commit()
    yield place
    place.hf.close()


@contextmanager
def driver(place: Place, connection: Any) -> Generator[Any]:
    with closing(connection):
        connection.cursor().execute(place.insert(1))
        yield connection
        connection.commit()


@contextmanager
def of_driver(place: Place) -> Generator[Any]:
    with place.plain() as connection:
        connection.cursor().execute(place.insert(1))
        yield connection
        connection.commit()


def dict_of_row(_cursor: object, row: tuple[object, ...]) -> dict[str, object]:
    return {"row": row}


@contextmanager
def with_rows_of_its_own(place: Place) -> Generator[Any]:
    """A connection whose rows are no tuples."""
    match place.name:
        case "sqlite":
            connection: Any = sqlite3.connect(place.options["database"])
            connection.row_factory = dict_of_row
        case "postgres":
            connection = psycopg.connect(**place.options, row_factory=untyped("psycopg.rows").dict_row)
        case _:
            connection = pymysql.connect(**place.options, cursorclass=untyped("pymysql.cursors").DictCursor)
    with driver(place, connection) as connection:
        yield connection


@contextmanager
def of_another_driver(place: Place) -> Generator[Any]:
    match place.name:
        case "sqlite":
            connection: Any = sqlite3.connect(place.options["database"], isolation_level=None)
            connection.execute("BEGIN")
        case "postgres":
            connection = psycopg2.connect(**place.options, cursor_factory=untyped("psycopg2.extras").RealDictCursor)
        case _:
            connection = connector.connect(**place.options)
    with driver(place, connection) as connection:
        yield connection


@contextmanager
def engine_of(place: Place, *, mysql: str = "pymysql") -> Generator[sqlalchemy.Engine]:
    match place.name:
        case "sqlite":
            url = f"sqlite:///{place.options['database']}"
        case "postgres":
            url = f"postgresql+psycopg://postgres@127.0.0.1:{place.options['port']}"
        case _:
            url = f"mysql+{mysql}://{place.options['user']}@127.0.0.1:{place.options['port']}/holdfast"
    engine = sqlalchemy.create_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def of_sqlalchemy(place: Place) -> Generator[Any]:
    with engine_of(place) as engine, engine.connect() as connection:
        connection.execute(sqlalchemy.text(place.insert(1)))
        yield connection
        connection.commit()


@contextmanager
def session_of_sqlalchemy(place: Place) -> Generator[Any]:
    with engine_of(place) as engine, Session(engine) as session:
        yield session  # nothing was executed in it yet
        session.execute(sqlalchemy.text(place.insert(1)))
        session.commit()


@contextmanager
def of_django(place: Place, *, mysql: str = "mysql.connector.django") -> Generator[Any]:
    settings = untyped("django.conf").settings
    if not settings.configured:
        settings.configure(USE_TZ=True)
        untyped("django").setup()
    connections = django_db.connections
    alias = f"db{next(_numbers)}"
    match place.name:
        case "sqlite":
            database = {"ENGINE": "django.db.backends.sqlite3", "NAME": place.options["database"]}
        case "postgres":
            where = {"HOST": "127.0.0.1", "PORT": place.options["port"], "USER": "postgres"}
            database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", **where}
        case _:
            where = {"HOST": "127.0.0.1", "PORT": place.options["port"], "USER": place.options["user"]}
            database = {"ENGINE": mysql, "NAME": "holdfast", **where}
    connections.settings = connections.configure_settings({**connections.settings, alias: database})
    connection = connections[alias]
    try:
        with django_db.transaction.atomic(using=alias):
            connection.cursor().execute(place.insert(1))
            yield connection
    finally:
        connection.close()


@contextmanager
def of_mysqlclient(place: Place) -> Generator[Any]:
    with driver(place, mysqlclient().connect(**place.options)) as connection:
        yield connection


@contextmanager
def of_mysqlclient_with_rows_of_its_own(place: Place) -> Generator[Any]:
    connect, rows = mysqlclient().connect, untyped("MySQLdb.cursors").DictCursor
    with driver(place, connect(**place.options, cursorclass=rows)) as connection:
        yield connection


@contextmanager
def of_mysqlclient_begun_by_hand(place: Place) -> Generator[Any]:
    connection = mysqlclient().connect(**place.options, autocommit=True)
    connection.begin()
    with driver(place, connection):
        yield connection


@contextmanager
def of_mysqlclient_through_sqlalchemy(place: Place) -> Generator[Any]:
    mysqlclient()
    with engine_of(place, mysql="mysqldb") as engine, engine.connect() as connection:
        connection.execute(sqlalchemy.text(place.insert(1)))
        yield connection
        connection.commit()


@contextmanager
def of_mysqlclient_through_django(place: Place) -> Generator[Any]:
    mysqlclient()
    with of_django(place, mysql="django.db.backends.mysql") as connection:
        yield connection


def mysqlclient() -> Any:
    """A driver that may be missing: it has no wheel for this system and must be compiled."""
    try:
        return untyped("MySQLdb")
    except ImportError as problem:
        pytest.skip(f"NO DRIVER: mysqlclient is not installed here, nothing of it is tested ({problem})")


CALLERS = [of_driver, with_rows_of_its_own, of_another_driver, of_sqlalchemy, session_of_sqlalchemy, of_django]
CALLERS_ON_MYSQL = [
    of_mysqlclient,
    of_mysqlclient_with_rows_of_its_own,
    of_mysqlclient_begun_by_hand,
    of_mysqlclient_through_sqlalchemy,
    of_mysqlclient_through_django,
]
every_caller = pytest.mark.parametrize(
    ("place", "caller"),
    [*itertools.product(PLACES, CALLERS), *itertools.product(["mysql"], CALLERS_ON_MYSQL)],
    indirect=["place"],
)


class Regret(Exception):
    """The caller does not want it after all."""


@every_caller
def test_a_job_exists_when_the_callers_transaction_is_committed(place: Place, caller: Callable[[Place], Any]) -> None:
    with caller(place) as tx:
        handle = place.ship.enqueue(1, tx=tx)
        built = place.hf.define("ship", {"order": 2}).dispatch(tx=tx)
        many = place.hf.enqueue_many([place.ship.define(3), place.ship.define(4)], tx=tx)
        ids = [handle.id, built, *many]
        assert (place.orders(), [place.knows(id) for id in ids]) == (0, [False] * 4)
    assert (place.orders(), [place.knows(id) for id in ids]) == (1, [True] * 4)


@every_caller
def test_a_job_is_gone_when_the_callers_transaction_is_rolled_back(
    place: Place, caller: Callable[[Place], Any]
) -> None:
    ids: list[str] = []

    def regret() -> None:
        with caller(place) as tx:
            ids.append(place.ship.enqueue(1, tx=tx).id)
            raise Regret

    with pytest.raises(Regret):
        regret()
    [id] = ids
    assert (place.orders(), place.knows(id)) == (0, False)
    assert place.ship.options(id=id).enqueue(1).id == id


@every_caller
def test_a_conflict_leaves_the_rest_of_the_transaction_alone(place: Place, caller: Callable[[Place], Any]) -> None:
    known = place.ship.enqueue(1).id
    with caller(place) as tx:
        assert place.ship.options(id=known).enqueue(1, tx=tx).id == known
        with pytest.raises(IdConflict):
            place.ship.options(id=known).enqueue(2, tx=tx)
        other = place.ship.enqueue(3, tx=tx).id
    assert (place.orders(), place.knows(other)) == (1, True)


def test_a_connection_that_commits_by_itself_is_refused(place: Place) -> None:
    before = place.hf.backend().counts()
    with place.plain() as connection:
        match place.name:
            case "sqlite":
                connection.isolation_level = None
            case "postgres":
                connection.autocommit = True
            case _:
                connection.autocommit(True)
        with pytest.raises(TransactionRefused, match="is not in a transaction"):
            place.ship.enqueue(1, tx=connection)
    assert place.hf.backend().counts() == before


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
def test_a_connection_of_mysqlclient_that_commits_by_itself_is_refused(place: Place) -> None:
    before = place.hf.backend().counts()
    connection = mysqlclient().connect(**place.options, autocommit=True)
    with closing(connection), pytest.raises(TransactionRefused, match="is not in a transaction"):
        place.ship.enqueue(1, tx=connection)
    assert place.hf.backend().counts() == before


def test_a_connection_to_another_database_is_refused(place: Place, tmp_path: Path) -> None:
    match place.name:
        case "sqlite":
            connection: Any = sqlite3.connect(tmp_path / "other.db")
        case "postgres":
            with place.plain() as admin:
                admin.autocommit = True
                admin.execute(f"CREATE DATABASE {place.table}")
            connection = psycopg.connect(**place.options, dbname=place.table)
        case _:
            with place.plain() as admin:
                admin.cursor().execute(f"CREATE DATABASE {place.table}")
            connection = pymysql.connect(**{**place.options, "database": place.table})
    with closing(connection), pytest.raises(TransactionRefused, match="the jobs are in"):
        place.ship.enqueue(1, tx=connection)


def test_a_connection_of_another_kind_is_refused(place: Place, tmp_path: Path) -> None:
    wrong: Any = sqlite3.connect(":memory:")
    if place.name == "sqlite":
        wrong = object()
    with pytest.raises(TransactionRefused, match="these jobs are in another engine"):
        place.ship.enqueue(1, tx=wrong)


def test_a_cursor_is_refused_with_what_to_pass(place: Place) -> None:
    with place.plain() as connection, pytest.raises(TransactionRefused, match=r"is a cursor .*: pass its connection"):
        place.ship.enqueue(1, tx=connection.cursor())


def test_a_function_with_a_parameter_of_that_name_gets_it(place: Place) -> None:
    @place.hf.job
    def transfer(tx: int) -> None: ...

    with place.plain() as connection:
        assert place.knows(transfer.enqueue(tx=7).id)
        id = place.hf.enqueue(transfer.define(tx=7), tx=connection)
        assert not place.knows(id)
        connection.commit()
    assert place.knows(id)
