-- ARGV: id, reason.
local id, reason = ARGV[1], ARGV[2]
local record = fields(base .. 'job:' .. id, 'state', 'queue', 'priority')
local state, queue, priority = state_of(record[1]), record[2] or '', rank(record[3])
if not state or state == FORGOTTEN then
  return 'unknown'
elseif FINISHED[state] then
  return 'too-late'
elseif state == PROCESSING then
  -- Asking again without a reason does not take the first one back.
  call(reason == '' and 'HSETNX' or 'HSET', base .. 'job:' .. id, 'cancel_request', reason)
  return 'requested'
end
call('ZREM', base .. 'ready:' .. queue .. ':' .. priority, id)
call('ZREM', base .. 'failed:' .. queue, id)
call('SREM', base .. 'again:' .. queue, id)
local _, deliveries = read_state(record[1])
move(id, queue, priority, CANCELLED, deliveries, now, { 'cancel_reason', reason })
return 'cancelled'
