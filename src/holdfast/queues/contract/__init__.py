"""The contract of an engine: jobs, records and shared state, and the engine that is composed of them."""

from holdfast.queues.contract.edges import (
    MAX_CHILDREN as MAX_CHILDREN,
    Change as Change,
    Edge as Edge,
    EdgeRows as EdgeRows,
    Resolved as Resolved,
    Turn as Turn,
    check_parents as check_parents,
    parents_of as parents_of,
    resolve as resolve,
    resolve_all as resolve_all,
)
from holdfast.queues.contract.engine import Capabilities as Capabilities, Engine as Engine, EngineInfo as EngineInfo
from holdfast.queues.contract.jobs import (
    DEFAULT_CRASH_LIMIT as DEFAULT_CRASH_LIMIT,
    DEFAULT_LEASE_S as DEFAULT_LEASE_S,
    DEFAULT_POLICY as DEFAULT_POLICY,
    DEFAULT_RETAIN_COMPLETED_S as DEFAULT_RETAIN_COMPLETED_S,
    EFFECT_OF_ACK as EFFECT_OF_ACK,
    LEASE_EXPIRED as LEASE_EXPIRED,
    LIVE_OUTPUT_BYTES as LIVE_OUTPUT_BYTES,
    MAX_PROGRESS_MESSAGE_BYTES as MAX_PROGRESS_MESSAGE_BYTES,
    Crashes as Crashes,
    Effect as Effect,
    EngineTransaction as EngineTransaction,
    Jobs as Jobs,
    LeasePolicy as LeasePolicy,
    abandoned_run as abandoned_run,
    effect_of as effect_of,
    extras_of as extras_of,
    kept_output as kept_output,
    kept_progress as kept_progress,
    new_owner_token as new_owner_token,
    new_session as new_session,
    take_once as take_once,
)
from holdfast.queues.contract.records import (
    IDLE_SLOT_S as IDLE_SLOT_S,
    PRUNE_BATCH as PRUNE_BATCH,
    SHOWN_RELATIVES as SHOWN_RELATIVES,
    SHOWN_WAITERS as SHOWN_WAITERS,
    TOMBSTONE_S as TOMBSTONE_S,
    Outdated as Outdated,
    Records as Records,
    check_purge as check_purge,
    has_expired as has_expired,
    history_of as history_of,
    message_fields as message_fields,
    until_done as until_done,
)
from holdfast.queues.contract.slots import (
    PROMOTION_S as PROMOTION_S,
    Crowd as Crowd,
    LockedSlots as LockedSlots,
    Place as Place,
    SlotRow as SlotRow,
    SlotRows as SlotRows,
    Waiter as Waiter,
    keeps_turn as keeps_turn,
    left_slots as left_slots,
    slot_names as slot_names,
)
from holdfast.queues.contract.state import SharedState as SharedState
from holdfast.queues.contract.uniques import (
    UniqueRow as UniqueRow,
    UniqueRows as UniqueRows,
    find_duplicates as find_duplicates,
)
