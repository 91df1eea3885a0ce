"""The identity of a database: a random id that all processes which share it read."""

import secrets
from typing import TYPE_CHECKING, Final

from holdfast.values import Put

if TYPE_CHECKING:
    from holdfast.queues.contract import SharedState

_KIND: Final = "identity"
_KEY: Final = "database"


def database_id(state: "SharedState") -> str:
    """The id of this database, created by the first process that asks for it."""
    while True:
        for cell in state.read(_KIND, [_KEY]):
            return cell.value.decode("ascii", "replace")
        state.write([Put(kind=_KIND, key=_KEY, value=secrets.token_hex(16).encode(), if_version=0)])
