"""The identity of a database: a random id that is read by all processes that share it."""

import re
import secrets
from typing import TYPE_CHECKING, Final

from holdfast.errors import BackendError
from holdfast.values import Put

if TYPE_CHECKING:
    from holdfast.queues.contract import SharedState

_KIND: Final = "identity"
_KEY: Final = "database"
# It becomes the name of a directory.
_id: Final = re.compile(rb"[0-9a-f]{32}")


def database_id(state: "SharedState") -> str:
    """The id of this database, created by the first process that asks for it."""
    while True:
        for cell in state.read(_KIND, [_KEY]):
            if not _id.fullmatch(cell.value):
                raise BackendError("the id of this database is damaged: delete the cell 'database' of kind 'identity'")
            return cell.value.decode()
        state.write([Put(kind=_KIND, key=_KEY, value=secrets.token_hex(16).encode(), if_version=0)])
