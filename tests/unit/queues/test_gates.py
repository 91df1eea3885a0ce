"""Gates, which keep a repeated claim from being granted twice: claims have to spread over them."""

from collections.abc import Callable

import pytest

from holdfast.queues.contract import new_owner_token, new_session
from holdfast.queues.engines.mysql import claims as mysql_claims
from holdfast.queues.engines.postgres import jobs as postgres

pytestmark = pytest.mark.parametrize("gate_of", [postgres.gate_of, mysql_claims.gate_of])


def test_the_claims_of_one_worker_spread_over_the_gates(gate_of: Callable[[bytes], int]) -> None:
    session = new_session()
    assert len({gate_of(bytes.fromhex(new_owner_token(session))) for _ in range(256)}) > 100


def test_the_claims_of_16_workers_spread_over_the_gates(gate_of: Callable[[bytes], int]) -> None:
    # The worst case: their sessions begin and end with the same byte.
    sessions = [b"\x07" + new_session()[1:7] + b"\x07" for _ in range(16)]
    assert len({gate_of(bytes.fromhex(new_owner_token(session))) for session in sessions}) > 8
