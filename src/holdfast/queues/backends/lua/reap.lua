-- Take back what was not settled in time. ARGV: limit of crashes, what the record of such a run tells, its error in
-- one line, how many jobs at most, and the queues, if not all. Answers how many it were.
local crash_limit, told, line, limit = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local queues = #ARGV > 4 and { ARGV[5] } or call('SMEMBERS', base .. 'queues')

-- The wall clock was set back: such a lease would outlive its worker by as much. No lease is longer ahead than twice
-- the shortest length there ever was, unless it is worth a closer look.
local function clamp(leased, shortest)
  local latest = '(' .. digits(now + 2 * shortest)
  local ahead = call('ZRANGEBYSCORE', leased, latest, '+inf', 'WITHSCORES')
  for place = 1, #ahead, 2 do
    local id, lease_until = ahead[place], tonumber(ahead[place + 1])
    local _, _, length = read_lease(call('HGET', base .. 'job:' .. id, 'lease'))
    if lease_until > now + 2 * length then
      call('ZADD', leased, now + length, id)
    end
  end
end

local function reap(id, queue)
  local job = base .. 'job:' .. id
  local record = call('HMGET', job, 'state', 'priority', 'lease', 'deliveries', 'crashes', 'cancel_request')
  call('ZREM', base .. 'leased:' .. queue, id)
  if record[1] ~= PROCESSING then
    return 0
  end
  local owner, claimed_at = read_lease(record[3])
  local crashes = (record[5] or 0) + 1
  -- Neither a claim nor a verdict: nobody's settlement is a repetition of this one.
  local ended = string.rep('\0', 16) .. '-crashed ' .. digits(claimed_at) .. ' ' .. digits(math.max(claimed_at, now))
  call('SREM', base .. 'claim:' .. owner, id)
  call('HDEL', job, 'lease')
  call('HSET', base .. 'told:' .. id, record[4], told)
  local changes = { 'crashes', crashes, 'last_error', line, 'end:' .. record[4], ended }
  give_back(id, queue, record[2], WAITING, now, changes, record[6], crashes >= crash_limit)
  return 1
end

local reaped = 0
local shortest = call('ZRANGE', base .. 'lengths', 0, 0)[1]
for _, queue in ipairs(queues) do
  local leased = base .. 'leased:' .. queue
  if shortest then
    clamp(leased, shortest)
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, limit - reaped)) do
    reaped = reaped + reap(id, queue)
  end
end
return reaped
