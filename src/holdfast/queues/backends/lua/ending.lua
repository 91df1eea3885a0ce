-- How a job leaves one state for the next.

-- The field `lease` of a record: the claim (16 bytes), when it was, and how long its leases last.
local function read_lease(lease)
  local claimed_at, length = string.match(lease, '(%d+) (%d+)$', 17)
  return string.sub(lease, 1, 16), tonumber(claimed_at), tonumber(length)
end

-- When the lease of this claim ends; false if it holds the job no more.
local function held_until(id, token, state, lease, queue)
  if state ~= PROCESSING or string.sub(lease, 1, 16) ~= token then
    return false
  end
  local lease_until = tonumber(call('ZSCORE', base .. 'leased:' .. queue, id))
  return lease_until > now and lease_until
end

-- Write the changes (field, value, …) together with the new state, and put the job into the index of that state.
local function move(id, queue, priority, state, due, changes)
  local at = #changes
  changes[at + 1], changes[at + 2] = 'state', state
  if FINISHED[state] then
    call('HSET', base .. 'job:' .. id, unpack(changes))
    call('ZADD', base .. FINISHED[state] .. queue, now, id)
    return
  end
  changes[at + 3], changes[at + 4] = 'due_at', due
  call('HSET', base .. 'job:' .. id, unpack(changes))
  call('ZADD', base .. 'ready:' .. queue .. ':' .. priority, due, id)
  call('SADD', base .. 'again:' .. queue, id)
  if state == FAILED then
    call('ZADD', base .. 'failed:' .. queue, due, id)
  end
  wake(queue)
end

-- A job that would wait again is cancelled if an operator wants it so, and dead if its crashes have reached the limit.
local function give_back(id, queue, priority, state, due, changes, request, is_crash_loop)
  if request then
    call('HDEL', base .. 'job:' .. id, 'cancel_request')
    changes[#changes + 1] = 'cancel_reason'
    changes[#changes + 1] = request
    state = CANCELLED
  elseif is_crash_loop then
    changes[#changes + 1] = 'dead_reason'
    changes[#changes + 1] = 'crash-loop'
    state = DEAD
  end
  move(id, queue, priority, state, due, changes)
end
