-- Cancel a job that waits, or request it of one that is held. ARGV: id, reason. Returns the answer.
local id, reason = ARGV[1], ARGV[2]
local record = fields(base .. 'job:' .. id, 'state', 'queue', 'priority', 'due_at')
local state, queue, priority = state_of(record[1]), record[2] or '', rank(record[3])
if not state or state == FORGOTTEN then
  return 'unknown'
elseif FINISHED[state] then
  return 'too-late'
elseif state == PROCESSING then
  -- A second request without a reason does not replace the reason of the first.
  call(reason == '' and 'HSETNX' or 'HSET', base .. 'job:' .. id, 'cancel_request', reason)
  return 'requested'
end
call('ZREM', base .. 'ready:' .. queue .. ':' .. priority, id)
call('ZREM', base .. 'failed:' .. queue, id)
call('SREM', base .. 'again:' .. queue, id)
if state == BLOCKED then
  unblock(id, record[1], queue, priority, record[4])
  call('HDEL', base .. 'job:' .. id, 'cancel_request')
end
local _, deliveries = read_state(record[1])
move(id, queue, priority, CANCELLED, deliveries, now, { 'cancel_reason', reason })
resolve_noted()
return 'cancelled'
