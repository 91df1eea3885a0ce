-- Accepting jobs. The server cannot compare contents: it returns the jobs whose ids are known, and the caller passes
-- the record that each of them matches. Nothing is written before all of them are compared.

-- ARGV from `at` on: the number of jobs, and seven arguments for each (id, queue, job, priority, message, delay, due
-- time); how many were compared, and for each the number of the job and of its record. Returns the number of jobs, a
-- function that returns the place of a job in ARGV, the numbers of records by those of jobs, and the next place in
-- ARGV.
local function read_jobs(at)
  local first, count = at + 1, tonumber(ARGV[at])
  local function place_of(job)
    return first + 7 * (job - 1)
  end
  at = place_of(count + 1)
  local compared, last = {}, at + 2 * tonumber(ARGV[at])
  for place = at + 1, last, 2 do
    compared[tonumber(ARGV[place])] = ARGV[place + 1]
  end
  return count, place_of, compared, last + 1
end

-- Look up which of these jobs are known. Returns those still to be compared (number, number of the record, digest or
-- message), the ids that belong to the same job, and the ids of expired tombstones.
local function look_up(jobs, place_of, compared)
  local number = 0
  for first = 1, #jobs, 1000 do
    local keys = {}
    for at = first, math.min(first + 999, #jobs) do
      keys[#keys + 1] = base .. 'job:' .. ARGV[place_of(jobs[at])]
    end
    number = number + call('EXISTS', unpack(keys))
  end
  local open, known, free = {}, {}, {}
  for _, job in ipairs(number > 0 and jobs or {}) do
    local id = ARGV[place_of(job)]
    local record = fields(base .. 'job:' .. id, 'state', 'number', 'known_until', 'digest')
    local is_there = record[1] or call('EXISTS', base .. 'job:' .. id) == 1
    if state_of(record[1]) == FORGOTTEN and (tonumber(record[3] or 0) or 0) <= now then
      free[id] = true
    elseif is_there and compared[job] ~= (record[2] or '') then
      open[#open + 1] = { job, record[2] or '', record[4] or false, not record[4] and message_of(id) }
    elseif is_there then
      known[id] = true
    end
  end
  return open, known, free
end

-- Reserve numbers for so many jobs. Returns the number before the first one. This fails if the counter is damaged, so
-- it comes before all other writes.
local function reserve(count)
  return call('INCRBY', base .. 'number', count) - count
end

-- When a job is due: after its delay, at its time, or at once.
local function due_of(delay, due, immediate)
  return delay ~= '0' and digits(now + delay) or tonumber(due) > now and due or digits(immediate)
end

-- Store these jobs, except those that are known, with the numbers after this one. Those with parents are blocked:
-- `after` has the policy and the parents of each. Returns the children, as `connect` takes them. No write fails: see
-- `write`.
local function insert(jobs, place_of, known, free, number, after)
  local all, wires, ready, queues, children = {}, {}, {}, {}, {}
  -- Jobs accepted together are due in the order given, so each is due a microsecond after the one before.
  local immediate = now - #jobs
  for _, one in ipairs(jobs) do
    local place = place_of(one)
    local id, queue, job, priority, wire, delay, due = unpack(ARGV, place, place + 6)
    immediate = immediate + 1
    if not known[id] then
      known[id] = true
      if free[id] then
        call('DEL', base .. 'job:' .. id)
        write('ZREM', 'stones', { id })
      end
      number = number + 1
      due = due_of(delay, due, immediate)
      local score, state = digits(number), WAITING
      local index, first = 'ready:' .. queue .. ':' .. priority, due
      if after[one] then
        state, index, first = BLOCKED .. ':' .. at_once, 'blocked:' .. queue, at_once
        children[#children + 1] = { name_of(id, score), unpack(after[one]) }
      end
      call('HSET', base .. 'job:' .. id, 'state', state, 'queue', queue, 'job', job, 'priority', priority,
        'number', score, 'accepted_at', at_once, 'due_at', due)
      all[#all + 1], all[#all + 2] = score, id
      wires[#wires + 1], wires[#wires + 2] = base .. 'wire:' .. id, wire
      if not ready[index] then
        ready[index] = {}
        queues[queue] = true
      end
      local waiting = ready[index]
      waiting[#waiting + 1], waiting[#waiting + 2] = first, id
    end
  end
  for first = 1, #wires, 1000 do
    call('MSET', unpack(wires, first, math.min(first + 999, #wires)))
  end
  write('ZADD', 'jobs', all)
  for index, waiting in pairs(ready) do
    write('ZADD', index, waiting)
  end
  for queue in pairs(queues) do
    write('SADD', 'queues', { queue })
    wake(queue)
  end
  return children
end

-- The values that are packed in this argument; none if there is no such argument.
local function unpacked(at)
  return ARGV[at] and cmsgpack.unpack(ARGV[at]) or {}
end

-- The policy and the parents of jobs by their numbers, from rows of all three.
local function by_job(rows)
  local after = {}
  for _, row in ipairs(rows) do
    after[row[1]] = { row[2], row[3] }
  end
  return after
end

-- The numbers from 1 to `count`.
local function up_to(count)
  local numbers = {}
  for number = 1, count do
    numbers[number] = number
  end
  return numbers
end
