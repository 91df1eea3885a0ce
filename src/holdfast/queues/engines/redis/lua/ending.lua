-- Holding a job, and moving it from one state to the next.

-- How many ids of jobs that completed together are stored in one member of their index.
local TOGETHER = 100

local function held(deliveries, lease_until, token)
  return PROCESSING .. deliveries .. ':' .. digits(lease_until) .. ' ' .. token
end

-- When the lease of this claim (at this delivery, if given) expires; false if the claim no longer holds the job.
local function held_until(token, field, delivery)
  if state_of(field) ~= PROCESSING then
    return false
  end
  local _, deliveries, lease_until, owner = read_state(field)
  if owner ~= token or deliveries ~= tonumber(delivery or deliveries) then
    return false
  end
  return (lease_until or 0) > now and lease_until
end

-- The length of the leases of a claim; nothing if the stored length is not valid.
local function length_of(stored)
  local length = tonumber(stored or nil)
  return length and length > 0 and length < 1e15 and length
end

-- Set when the lease of this job expires.
local function renew(id, field, queue, lease_until)
  local _, deliveries, _, token = read_state(field)
  call('HSET', base .. 'job:' .. id, 'state', held(deliveries, lease_until, token))
  call('ZADD', base .. 'renewed:' .. queue, lease_until, id)
end

-- Release these jobs from their claim.
local function let_go(token, queue, ids)
  local claim = base .. 'claim:' .. token .. ':' .. queue
  if call('EXISTS', base .. 'renewed:' .. queue) == 1 then
    write('ZREM', 'renewed:' .. queue, ids)
  end
  -- If it cannot be counted, the reaper deletes the claim once no record belongs to it.
  local left = try('HINCRBY', claim, 'held', -#ids)
  if type(left) == 'number' and left <= 0 then
    call('UNLINK', claim)
    write('ZREM', 'leased:' .. queue, { token })
  end
end

-- Whether any job has children, once it was looked up; and whether this script has left a note.
local has_watched, has_noted

-- Leave a note on a parent whose edges may disagree with its state: see `edges.lua`.
local function leave_note(parent)
  write('ZADD', 'notes', { at_once, parent })
  has_watched, has_noted = true, true
end

local function is_any_watched()
  if has_watched == nil then
    has_watched = call('EXISTS', base .. 'watched') == 1
  end
  return has_watched
end

-- Leave a note on those of these jobs that have children. They have ended, or were deleted, replayed or blocked again.
local function note(ids)
  for first = 1, is_any_watched() and #ids or 0, 1000 do
    for _, parent in ipairs(found_in('HMGET', 'watched', unpack(ids, first, math.min(first + 999, #ids)))) do
      if parent then
        leave_note(parent)
      end
    end
  end
end

-- Add jobs to the index of completed jobs.
local function complete(queue, ids)
  local members = {}
  for first = 1, #ids, TOGETHER do
    members[#members + 1] = at_once
    members[#members + 1] = table.concat(ids, '\n', first, math.min(first + TOGETHER - 1, #ids))
  end
  write('ZADD', 'completed:' .. queue, members)
  count_completed(queue, #ids)
  note(ids)
end

-- The stored priority; the default if it is not valid.
local function rank(stored)
  return stored and string.match(stored, '^%d$') or '5'
end

-- Add the job to the index of its new state, and write the state together with the changes (field, value, …). No write
-- fails: other jobs of the batch may have been settled already.
local function move(id, queue, priority, state, deliveries, due, changes)
  local at = #changes
  changes[at + 1], changes[at + 2] = 'state', state .. deliveries
  if state == COMPLETED then
    changes[at + 2] = state .. deliveries .. ':' .. at_once
    complete(queue, { id })
  elseif FINISHED[state] then
    write('ZADD', FINISHED[state] .. queue, { at_once, id })
    note({ id })
  else
    changes[at + 3], changes[at + 4] = 'due_at', due
    write('ZADD', 'ready:' .. queue .. ':' .. rank(priority), { due, id })
    write('SADD', 'again:' .. queue, { id })
    if state == FAILED then
      write('ZADD', 'failed:' .. queue, { due, id })
    end
    wake(queue)
  end
  write('HSET', 'job:' .. id, changes)
end

-- The ids of jobs that were dead-lettered because their records are damaged, for the caller's log.
local dead_lettered = {}

-- Dead-letter a job of this queue that has no readable record; a record of the wrong type is set aside. An id with
-- neither a record nor a message is only removed from the indexes. No write fails.
local function dead_letter(id, queue)
  for priority = 0, 9 do
    write('ZREM', 'ready:' .. queue .. ':' .. priority, { id })
  end
  write('ZREM', 'failed:' .. queue, { id })
  write('SREM', 'again:' .. queue, { id })
  write('ZREM', 'renewed:' .. queue, { id })
  local record = fields(base .. 'job:' .. id, 'number', 'job', 'accepted_at')
  if call('EXISTS', base .. 'job:' .. id, base .. 'wire:' .. id) == 0 then
    write('ZREM', 'jobs', { id })
    return
  end
  local number = tonumber(record[1]) or tonumber(text(try('ZSCORE', base .. 'jobs', id)) or 0)
  write('ZADD', 'jobs', { number, id })
  dead_lettered[#dead_lettered + 1] = id
  move(id, queue, '5', DEAD, 0, now, { 'queue', queue, 'job', record[2] or '', 'number', digits(number), 'priority', '5',
    'accepted_at', digits(tonumber(record[3]) or now), 'due_at', at_once, 'dead_reason', 'undecodable',
    'last_error', 'DamagedRecord: the stored record cannot be read' })
end

-- End a delivery. A job that would wait again is cancelled if an operator requested it, and dead-lettered if its
-- crashes have reached the limit.
local function end_delivery(token, id, queue, priority, state, deliveries, due, changes, request, is_crash_loop)
  if request and not FINISHED[state] then
    changes[#changes + 1], changes[#changes + 2] = 'cancel_reason', request
    state = CANCELLED
  elseif is_crash_loop and not FINISHED[state] then
    changes[#changes + 1], changes[#changes + 2] = 'dead_reason', 'crash-loop'
    state = DEAD
  end
  move(id, queue, priority, state, deliveries, due, changes)
  if request then
    try('HDEL', base .. 'job:' .. id, 'cancel_request')
  end
  let_go(token, queue, { id })
end
