-- Settlements. A held lease is what its job's record says: this claim, processing, not ended. How each delivery ended
-- stands in the record as `end:<delivery>`: the claim (16 bytes), the verdict (one letter), outcome, start and end.

local function was_settled(id, delivery, ended)
  local known = call('HGET', base .. 'job:' .. id, 'end:' .. delivery)
  return known and string.sub(known, 1, 17) == string.sub(ended, 1, 17)
end

-- Acknowledgements of one claim, which are nearly all settlements: ARGV from `at` on has id, delivery, end and what the
-- attempt has to tell, `count` times. Who holds what is asked for all at once: a job is in the set of a claim as long
-- as its record names that claim, and its lease ends when the index says so.
local function acknowledge(token, queue, count, at, answers)
  local claim, leased = base .. 'claim:' .. token, base .. 'leased:' .. queue
  local ids, leaving, done, finished = {}, {}, {}, {}
  for number = 1, count do
    ids[number] = ARGV[at + 4 * (number - 1)]
  end
  local is_claimed, leased_until = each('SMISMEMBER', claim, ids), each('ZMSCORE', leased, ids)
  for number, id in ipairs(ids) do
    local delivery, ended, told = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    at = at + 4
    if is_claimed[number] == 1 and tonumber(leased_until[number] or 0) > now and not finished[id] then
      call('HSET', base .. 'job:' .. id, 'state', COMPLETED, 'end:' .. delivery, ended)
      if told ~= '' then
        call('HSET', base .. 'told:' .. id, delivery, told)
      end
      finished[id] = true
      leaving[#leaving + 1] = id
      done[#done + 1], done[#done + 2] = at_once, id
      answers[#answers + 1] = '1'
    else
      answers[#answers + 1] = was_settled(id, delivery, ended) and '1' or '0'
    end
  end
  if #done > 0 then
    many('ZADD', base .. 'completed:' .. queue, done)
    many('ZREM', leased, leaving)
    many('SREM', claim, leaving)
  end
end

local function settle_one(at, crash_limit)
  local id, delivery, token, ended, told, state = unpack(ARGV, at, at + 5)
  local adds_attempt, crashing, line, reason, expired, delay = unpack(ARGV, at + 6, at + 11)
  local job = base .. 'job:' .. id
  local record = call('HMGET', job, 'state', 'lease', 'queue', 'priority', 'attempts', 'crashes', 'cancel_request')
  local queue, priority, request = record[3], record[4], record[7]
  if not held_until(id, token, record[1], record[2], queue) then
    return was_settled(id, delivery, ended)
  end
  local crashes = crashing == 'reset' and 0 or (record[6] or 0) + (crashing == 'add' and 1 or 0)
  local changes = { 'attempts', (record[5] or 0) + adds_attempt, 'crashes', crashes, 'end:' .. delivery, ended }
  if line ~= '' then
    changes[#changes + 1], changes[#changes + 2] = 'last_error', line
  end
  call('ZREM', base .. 'leased:' .. queue, id)
  call('SREM', base .. 'claim:' .. token, id)
  if told ~= '' then
    call('HSET', base .. 'told:' .. id, delivery, told)
  end
  if not FINISHED[state] then
    local is_crash_loop = crashing == 'add' and crashes >= tonumber(crash_limit)
    give_back(id, queue, priority, state, now + delay, changes, request, is_crash_loop)
    return true
  end
  if request then
    call('HDEL', job, 'cancel_request')
  end
  if state == DEAD then
    changes[#changes + 1], changes[#changes + 2] = 'dead_reason', reason
  elseif state == CANCELLED then
    changes[#changes + 1], changes[#changes + 2] = 'cancel_reason', reason ~= '' and reason or request or ''
    changes[#changes + 1], changes[#changes + 2] = 'expired', expired
  end
  move(id, queue, priority, state, now, changes)
  return true
end

-- ARGV from `at` on: `acks`, the claim, its queue, how many, and these; or `one` and the twelve words of any other
-- settlement.
local function settle(at, crash_limit)
  local answers = {}
  while at <= #ARGV do
    if ARGV[at] == 'acks' then
      local count = tonumber(ARGV[at + 3])
      acknowledge(ARGV[at + 1], ARGV[at + 2], count, at + 4, answers)
      at = at + 4 + 4 * count
    else
      answers[#answers + 1] = settle_one(at + 1, crash_limit) and '1' or '0'
      at = at + 13
    end
  end
  return table.concat(answers)
end
