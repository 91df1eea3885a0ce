-- Deleting jobs, with or without a tombstone: the id and the digest of the content, retained for a while.

-- Delete everything about a job. Returns 1, or 0 if there was nothing. Its children are resolved by a note.
local function remove(id, number)
  call('ZREM', base .. 'jobs', id)
  note({ id })
  local name = name_of(id, number)
  disconnect(name)
  return math.min(1, call('UNLINK', base .. 'job:' .. id, base .. 'wire:' .. id, base .. 'told:' .. id,
    base .. 'parents:' .. name))
end

local function bury(id, number, digest, known_until)
  remove(id, number)
  call('HSET', base .. 'job:' .. id, 'state', FORGOTTEN, 'number', number, 'digest', digest,
    'known_until', known_until)
  call('ZADD', base .. 'stones', known_until, id)
end

-- Remove jobs (id: true) with this score from the index of completed jobs, where several share a member. Returns how
-- many were removed.
local function leave_completed(queue, score, ids)
  local completed = base .. 'completed:' .. queue
  local left = 0
  for _, member in ipairs(call('ZRANGEBYSCORE', completed, score, score)) do
    local staying, leaving = {}, 0
    for _, id in ipairs(lines(member)) do
      if ids[id] then
        leaving = leaving + 1
      else
        staying[#staying + 1] = id
      end
    end
    if leaving > 0 and call('ZREM', completed, member) == 1 then
      if #staying > 0 then
        call('ZADD', completed, score, table.concat(staying, '\n'))
      end
      left = left + leaving
    end
  end
  count_completed(queue, -left)
  return left
end

-- Completed jobs to be removed from their index, by queue and score: queue, score, ids (id: true).
local leaving = {}

-- Remove a job from the index of its state. Returns how many entries were removed: a completed job is removed by
-- `all_left`.
local function leave(id, state, queue, score)
  if state ~= COMPLETED then
    return call('ZREM', base .. FINISHED[state] .. queue, id)
  end
  local place = queue .. ' ' .. score
  leaving[place] = leaving[place] or { queue, score, {} }
  leaving[place][3][id] = true
  return 0
end

local function all_left()
  local left = 0
  for _, one in pairs(leaving) do
    left = left + leave_completed(unpack(one))
  end
  return left
end
