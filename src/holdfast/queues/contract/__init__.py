"""The contract of an engine: jobs, records and shared state, and the engine that is composed of them."""

from holdfast.queues.contract.engine import (
    Capabilities as Capabilities,
)
from holdfast.queues.contract.engine import (
    Engine as Engine,
)
from holdfast.queues.contract.engine import (
    EngineInfo as EngineInfo,
)
from holdfast.queues.contract.jobs import (
    DEFAULT_CRASH_LIMIT as DEFAULT_CRASH_LIMIT,
)
from holdfast.queues.contract.jobs import (
    DEFAULT_LEASE_S as DEFAULT_LEASE_S,
)
from holdfast.queues.contract.jobs import (
    DEFAULT_POLICY as DEFAULT_POLICY,
)
from holdfast.queues.contract.jobs import (
    DEFAULT_RETAIN_COMPLETED_S as DEFAULT_RETAIN_COMPLETED_S,
)
from holdfast.queues.contract.jobs import (
    EFFECT_OF_ACK as EFFECT_OF_ACK,
)
from holdfast.queues.contract.jobs import (
    LIVE_OUTPUT_BYTES as LIVE_OUTPUT_BYTES,
)
from holdfast.queues.contract.jobs import (
    MAX_PROGRESS_MESSAGE_BYTES as MAX_PROGRESS_MESSAGE_BYTES,
)
from holdfast.queues.contract.jobs import (
    Crashes as Crashes,
)
from holdfast.queues.contract.jobs import (
    Effect as Effect,
)
from holdfast.queues.contract.jobs import (
    EngineTransaction as EngineTransaction,
)
from holdfast.queues.contract.jobs import (
    Jobs as Jobs,
)
from holdfast.queues.contract.jobs import (
    LeasePolicy as LeasePolicy,
)
from holdfast.queues.contract.jobs import (
    abandoned_run as abandoned_run,
)
from holdfast.queues.contract.jobs import (
    effect_of as effect_of,
)
from holdfast.queues.contract.jobs import (
    kept_output as kept_output,
)
from holdfast.queues.contract.jobs import (
    kept_progress as kept_progress,
)
from holdfast.queues.contract.jobs import (
    new_owner_token as new_owner_token,
)
from holdfast.queues.contract.jobs import (
    new_session as new_session,
)
from holdfast.queues.contract.jobs import (
    take_once as take_once,
)
from holdfast.queues.contract.jobs import (
    with_extras as with_extras,
)
from holdfast.queues.contract.records import (
    TOMBSTONE_S as TOMBSTONE_S,
)
from holdfast.queues.contract.records import (
    RecordFields as RecordFields,
)
from holdfast.queues.contract.records import (
    Records as Records,
)
from holdfast.queues.contract.records import (
    check_purge as check_purge,
)
from holdfast.queues.contract.records import (
    has_expired as has_expired,
)
from holdfast.queues.contract.records import (
    history_of as history_of,
)
from holdfast.queues.contract.records import (
    view_of as view_of,
)
from holdfast.queues.contract.state import (
    SharedState as SharedState,
)
