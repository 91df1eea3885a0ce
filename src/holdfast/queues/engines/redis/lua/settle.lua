-- Settlements. Whether a lease holds is decided by the record of its job: processing, this claim, not expired. The
-- record also has the outcome of each delivery: in `state` if it was acknowledged, else in `end:<delivery>`: the claim
-- (16 bytes), the verdict (one letter), outcome, start and end.
local REFUSED, APPLIED, REPEATED = '0', '1', '2'

-- Whether this delivery was settled by the same claim and verdict before; `ended` begins with both.
local function was_settled(id, delivery, ended)
  local record = fields(base .. 'job:' .. id, 'state', 'end:' .. delivery)
  local known = record[2]
  if state_of(record[1]) == COMPLETED and not known then
    local _, deliveries, _, how = read_state(record[1])
    known = deliveries == tonumber(delivery) and how
  end
  return known and string.sub(known, 1, 17) == string.sub(ended, 1, 17)
end

-- Store the details of an attempt. After a `+` they include its output, which replaces the live output.
local function store_details(id, delivery, details)
  write('HSET', 'told:' .. id, { delivery, string.sub(details, 2) })
  if string.sub(details, 1, 1) == '+' then
    call('HDEL', base .. 'told:' .. id, 'output:' .. delivery)
  end
end

-- Settle successes of one claim at the same delivery, which are nearly all settlements. ARGV from `at` on: the claim,
-- its queue, the delivery, the ids, start and end of each, how many attempts have details, and for each of those the
-- number of the job in this batch and the details. Returns the number of arguments.
local function acknowledge(at, answers)
  local token, queue, delivery, packed, times = unpack(ARGV, at, at + 4)
  local detailed = tonumber(ARGV[at + 5])
  local completed = COMPLETED .. delivery .. ':' .. at_once .. ' ' .. token .. 'a'
  local holds_any = call('EXISTS', base .. 'claim:' .. token .. ':' .. queue) == 1
  local ids, told, leaving, stamp = cmsgpack.unpack(packed), {}, {}, nil
  for place = at + 6, at + 4 + 2 * detailed, 2 do
    told[tonumber(ARGV[place])] = ARGV[place + 1]
  end
  for number, id in ipairs(ids) do
    local field = state_field(id)
    -- Nearly all were stamped together, so the same state means the same answer.
    if field == stamp or holds_any and held_until(token, field, delivery) then
      stamp = field
      call('HSET', base .. 'job:' .. id, 'state', completed .. string.sub(times, 16 * number - 15, 16 * number))
      if told[number] then
        store_details(id, delivery, told[number])
      end
      leaving[#leaving + 1] = id
      answers[#answers + 1] = APPLIED
    else
      answers[#answers + 1] = was_settled(id, delivery, token .. 'a') and REPEATED or REFUSED
    end
  end
  if #leaving > 0 then
    complete(queue, leaving)
    let_go(token, queue, leaving)
  end
  return 6 + 2 * detailed
end

local function settle_one(at, crash_limit)
  local id, queue, delivery, token, ended, told, state = unpack(ARGV, at, at + 6)
  local adds_attempt, crashing, line, reason, expired, delay = unpack(ARGV, at + 7, at + 12)
  local record = fields(base .. 'job:' .. id, 'state', 'queue', 'priority', 'attempts', 'crashes', 'cancel_request')
  local priority, request = record[3], record[6]
  if not held_until(token, record[1], delivery) then
    return was_settled(id, delivery, ended) and REPEATED or REFUSED
  end
  local crashes = crashing == 'reset' and 0 or count(record[5]) + (crashing == 'add' and 1 or 0)
  local changes = { 'attempts', count(record[4]) + adds_attempt, 'crashes', crashes, 'end:' .. delivery, ended }
  if record[2] ~= queue then
    changes[#changes + 1], changes[#changes + 2] = 'queue', queue
  end
  if line ~= '' then
    changes[#changes + 1], changes[#changes + 2] = 'last_error', line
  end
  if told ~= '' then
    store_details(id, delivery, told)
  end
  if state == DEAD then
    changes[#changes + 1], changes[#changes + 2] = 'dead_reason', reason
  elseif state == CANCELLED then
    changes[#changes + 1], changes[#changes + 2] = 'cancel_reason', reason ~= '' and reason or request or ''
    changes[#changes + 1], changes[#changes + 2] = 'expired', expired
  end
  local is_crash_loop = crashing == 'add' and crashes >= tonumber(crash_limit)
  end_delivery(token, id, queue, priority, state, delivery, now + delay, changes, request, is_crash_loop)
  return APPLIED
end

-- ARGV from `at` on: `acks` and their arguments, or `one` and the thirteen arguments of any other settlement. Returns a
-- digit for each: refused, applied now, or repeated.
local function settle(at, crash_limit)
  local answers = {}
  while at <= #ARGV do
    if ARGV[at] == 'acks' then
      at = at + 1 + acknowledge(at + 1, answers)
    else
      answers[#answers + 1] = settle_one(at + 1, crash_limit)
      at = at + 14
    end
  end
  return table.concat(answers)
end
