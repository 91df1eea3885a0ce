-- Keep all of these jobs, or none. ARGV: how many known ids the caller has compared, each with its number; then the
-- jobs: id, queue, job, priority, message, delay, due time. Answers the known ones that are still to be compared (id,
-- number, digest or message); nothing was written then.
local compared, at = {}, 2
for _ = 1, tonumber(ARGV[1]) do
  compared[ARGV[at]] = ARGV[at + 1]
  at = at + 2
end

local known = 0
for first = at, #ARGV, 7000 do
  local keys = {}
  for place = first, math.min(first + 6999, #ARGV), 7 do
    keys[#keys + 1] = base .. 'job:' .. ARGV[place]
  end
  known = known + call('EXISTS', unpack(keys))
end

local free, open = {}, {}
if known > 0 then
  for place = at, #ARGV, 7 do
    local id = ARGV[place]
    local record = call('HMGET', base .. 'job:' .. id, 'state', 'number', 'known_until', 'digest')
    if state_of(record[1]) == FORGOTTEN and tonumber(record[3]) <= now then
      free[#free + 1] = id
    elseif record[1] and compared[id] ~= record[2] then
      open[#open + 1] = { id, record[2], record[4], not record[4] and call('GET', base .. 'wire:' .. id) }
    elseif not record[1] then
      compared[id] = nil
    end
  end
  if #open > 0 then
    return open
  end
  for _, id in ipairs(free) do
    compared[id] = nil
    call('DEL', base .. 'job:' .. id)
    call('ZREM', base .. 'stones', id)
  end
end

local count = (#ARGV - at + 1) / 7
local number = call('INCRBY', base .. 'number', count) - count
local all, wires, ready, queues = {}, {}, {}, {}
-- Jobs accepted together are due in the order given, so each is due a microsecond after the one before.
local immediate = now - count
for place = at, #ARGV, 7 do
  local id, queue, job, priority, wire, delay, due = unpack(ARGV, place, place + 6)
  immediate = immediate + 1
  if not compared[id] then
    number = number + 1
    due = delay ~= '0' and digits(now + delay) or tonumber(due) > now and due or digits(immediate)
    local score = digits(number)
    call('HSET', base .. 'job:' .. id, 'state', WAITING, 'queue', queue, 'job', job, 'priority', priority,
      'number', score, 'accepted_at', at_once, 'due_at', due)
    all[#all + 1], all[#all + 2] = score, id
    wires[#wires + 1], wires[#wires + 2] = base .. 'wire:' .. id, wire
    local index = 'ready:' .. queue .. ':' .. priority
    if not ready[index] then
      ready[index] = {}
      queues[queue] = true
    end
    local waiting = ready[index]
    waiting[#waiting + 1], waiting[#waiting + 2] = due, id
  end
end
for first = 1, #wires, 1000 do
  call('MSET', unpack(wires, first, math.min(first + 999, #wires)))
end
many('ZADD', base .. 'jobs', all)
for index, waiting in pairs(ready) do
  many('ZADD', base .. index, waiting)
end
for queue in pairs(queues) do
  call('SADD', base .. 'queues', queue)
  wake(queue)
end
return open
