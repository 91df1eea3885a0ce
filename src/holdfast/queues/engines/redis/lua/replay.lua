-- Replay a dead or cancelled job. ARGV: id, the number of the record whose message was read, when that message expires
-- (or nothing), and whether to ignore that. Returns the answer.
local id, number, expires_at, ignore_expiry = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local job = base .. 'job:' .. id
local record = fields(job, 'state', 'number', 'queue', 'priority', 'expired', 'ignore_expiry')
local state, queue, priority = state_of(record[1]), record[3], record[4]
if not queue then
  return 'unknown'
end
if not state or state == FORGOTTEN or record[2] ~= number then
  return 'unknown'
elseif state ~= DEAD and state ~= CANCELLED then
  return 'not-final'
end
local is_too_late = record[5] == '1' or (record[6] ~= '1' and expires_at and expires_at <= now)
if is_too_late and not ignore_expiry then
  return 'expired'
end
local name = name_of(id, number)
if edges.is_damaged(name) then
  -- The caller rebuilds the edges and runs this script again.
  return redis.error_reply('WRONGTYPE the edges of ' .. id .. ' are damaged')
end
call('ZREM', base .. FINISHED[state] .. queue, id)
call('HDEL', job, 'dead_reason', 'cancel_reason', 'expired')
local changes = { 'attempts', 0, 'crashes', 0 }
if ignore_expiry then
  changes[5], changes[6] = 'ignore_expiry', 1
end
local deliveries = count(select(2, read_state(record[1])))
disregard_failed(name)
if edges.has(name, EDGE_OPEN) then
  changes[#changes + 1], changes[#changes + 2] = 'due_at', at_once
  block(id, queue, deliveries, now, changes)
else
  move(id, queue, priority, WAITING, deliveries, now, changes)
end
note({ id })
resolve_noted()
return 'replayed'
