-- The beginning of every script: the time, the states and the names of the keys. All keys of an installation begin with
-- KEYS[1], which is a hash tag, so in a cluster they are on one node. Times are microseconds since the epoch.
--
--   job:<id>                    hash: the record; its field `state` is the truth
--   wire:<id>                   string: the signed message, written once
--   told:<id>                   hash: details of attempts (by delivery), the latest progress, and the live output
--                               (`output:<delivery>`) of attempts whose settlement had none
--
-- The first character of `state` is the state; the number of deliveries follows. If the job is held or was
-- acknowledged, there are also a colon, an instant (when the lease expires, or when the job completed), a space and
-- the claim (16 bytes). An acknowledgement adds the verdict (one letter), start and end (8 bytes each, big-endian; 0
-- without a record). If the job is blocked, there are a colon and since when; if it waits for a slot, and not for other
-- jobs, also a space, the size of the slot as its message has it, a space, and the name of the slot.
--
-- The others are indexes of the records. Their scores are stored nowhere else, except for the instants above and the
-- due time:
--
--   jobs                        zset by number: every record that is not a tombstone
--   ready:<queue>:<priority>    zset by due time: waiting jobs, due or not
--   failed:<queue>              zset by due time: those that wait for a retry
--   again:<queue>               set: those that were delivered before
--   claim:<token>:<queue>       hash: the jobs of a claim (`ids`, one per line), when it was made (`at`), how long its
--                               leases are (`length`), and how many jobs it still holds (`held`); deleted with the last
--   leased:<queue>              zset: claims that hold jobs, by when the first of their leases may expire
--   renewed:<queue>             zset by the end of the lease: jobs whose lease was renewed
--   completed:<queue>           zset by the time of finishing: ids, one per line, of jobs that completed together
--   completions                 hash: the number of completed jobs of each queue
--   dead: cancelled:            zsets by the time of finishing, per queue
--   stones                      zset: ids of tombstones, by when they expire
--   lengths                     zset: every length that leases have had, by itself
--   blocked:<queue>             zset by since when: blocked jobs
--   waiting:<slot>:<queue>      zset, every score 0: blocked jobs, best first: 9 minus the priority, the due time (16
--                               digits), the id
--   queues:<slot>               set: the queues in which jobs wait for the slot
--   waited                      zset, every score 0: slots that jobs wait for, in the order of their bytes
--   wake:<queue>                list: a hint that the queue has work, at most one, and never the work itself
--
-- Slots and unique keys:
--
--   places:<slot>               hash: places that are taken, by job; each counts while its job is held by the claim in
--                               it, or while its promotion has not expired
--   used                        zset, every score 0: slots that jobs hold or wait for, in the order of their bytes
--   slots                       zset: slots, by the last fence that was given out
--   sizes                       hash: the size of each slot whose size was set, a space, and until when it admits no job
--   uniques                     hash: the job that was last stored with a key, and when its period ends
--
-- Edges between jobs. The name of a job in them is its number (16 digits) and its id; the score of an edge is its
-- outcome (0 open, 10 met, 20 cancelled) plus its policy (0 cancel, 1 run, 2 wait):
--
--   parents:<name>              zset: the jobs that this one waits for
--   children:<name>             zset: the jobs that wait for this one; remains until a deleted one is resolved
--   watched                     hash: the name of each job that has children, by its id
--   notes                       zset: parents whose edges may disagree with their states, by when the note was left
--
-- Shared state:
--
--   cells:<kind>                hash: the cells of a kind by key, dropped and expired ones until they are swept
--   keys:<kind>                 zset, every score 0: the keys of these cells, in the order of their bytes
--   expiries                    zset: kind, space and key of cells that expire, by when they may be swept
--   buckets                     zset: token buckets, by when they are full
--
-- Other programs may write any of these keys. A key of the wrong type is renamed to `damaged:<key>`; the name of an
-- index is noted in the hash `rebuild`, with the time, until the index has been rebuilt from the records. A job
-- without a readable record is dead-lettered. Nothing is deleted.
--
-- A script that fails is not rolled back. So it fails only at a read, before its first write, or where running it again
-- after the repair completes it. `write` never fails because of a key of the wrong type.
--
-- Most of the cost of a job is the number of commands and of their arguments. So a claim and an acknowledgement write
-- one field of each job, and what all jobs of a batch have in common is written once.
local base = KEYS[1]
local call, try = redis.call, redis.pcall
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

-- A number as text. As a number it would be converted again for each command.
local function digits(number)
  return string.format('%.0f', number)
end

local at_once = digits(now)
local WAITING, FAILED, PROCESSING, BLOCKED, COMPLETED, DEAD, CANCELLED, FORGOTTEN =
  '0', '1', '2', '3', '4', '5', '6', '7'
local FINISHED = { [COMPLETED] = 'completed:', [DEAD] = 'dead:', [CANCELLED] = 'cancelled:' }

-- Split the field `state` into state, deliveries, instant, and the rest: the claim and what follows it.
local function read_state(field)
  local deliveries, instant, rest = string.match(field, '^(%d*):?(%d*) ?(.*)$', 2)
  return string.sub(field, 1, 1), tonumber(deliveries) or 0, tonumber(instant), rest
end

-- Fields of a hash; none if the key has another type.
local function fields(key, ...)
  local found = try('HMGET', key, ...)
  return found.err and {} or found
end

-- The reply of a command if it is a string: neither missing nor an error.
local function text(reply)
  return type(reply) == 'string' and reply
end

local function state_field(id)
  return text(try('HGET', base .. 'job:' .. id, 'state'))
end

local function message_of(id)
  return text(try('GET', base .. 'wire:' .. id))
end

-- A count from 0 to the greatest that every engine can store.
local MANY = 2147483646
local function count(stored)
  local number = math.floor(tonumber(stored or 0) or 0)
  return number == number and math.max(0, math.min(number, MANY)) or 0
end

local function state_of(field)
  return field and string.sub(field, 1, 1)
end

-- A stored instant; 0 if it is not one, or lies after the year 2250, beyond which no number is exact.
local function time_of(stored)
  local number = math.floor(tonumber(stored or 0) or 0)
  return number >= 0 and number < 9e15 and number or 0
end

-- The slot of a blocked job, its size, and since when the job is blocked.
local function blocked_on(field)
  if state_of(field) ~= BLOCKED then
    return nil
  end
  local _, _, since, rest = read_state(field)
  local size, slot = string.match(rest, '^(%d+) (.+)$')
  return slot, tonumber(size), time_of(since)
end

-- When this finished job finished.
local function finished_at(id, field, queue)
  local state, _, instant = read_state(field)
  return instant or tonumber(call('ZSCORE', base .. FINISHED[state] .. (queue or ''), id) or 0)
end

-- The lines of a string, which are ids: an id has no line feed.
local function lines(ids)
  local found = {}
  for line in string.gmatch(ids or '', '[^\n]+') do
    found[#found + 1] = line
  end
  return found
end

-- The replies of a command that takes many members, in their order.
local function each(command, key, members)
  local replies = {}
  for first = 1, #members, 1000 do
    for _, reply in ipairs(call(command, key, unpack(members, first, math.min(first + 999, #members)))) do
      replies[#replies + 1] = reply
    end
  end
  return replies
end

-- Rename a key of the wrong type, without overwriting one that was renamed before. An index is noted to be rebuilt.
local function set_aside(name)
  local aside = base .. 'damaged:' .. name
  if call('EXISTS', aside) == 1 then
    aside = aside .. ':' .. at_once
  end
  call('RENAME', base .. name, aside)
  if not string.match(name, '^told:') and not string.match(name, '^job:') then
    if type(try('HSET', base .. 'rebuild', name, at_once)) == 'table' then
      call('RENAME', base .. 'rebuild', base .. 'damaged:rebuild:' .. at_once)
      call('HSET', base .. 'rebuild', name, at_once)
    end
  end
end

-- The reply of a command that reads an index, which is a list. An index of the wrong type is set aside.
local function found_in(command, name, ...)
  local reply = try(command, base .. name, ...)
  if reply.err then
    set_aside(name)
    return {}
  end
  return reply
end

-- Write many values to a key, in portions that fit Lua's stack and never split a pair. A key of another type is set
-- aside first.
local function write(command, name, values)
  for first = 1, #values, 1000 do
    local last = math.min(first + 999, #values)
    if type(try(command, base .. name, unpack(values, first, last))) == 'table' then
      set_aside(name)
      call(command, base .. name, unpack(values, first, last))
    end
  end
end

-- Count completed jobs. A damaged count is set aside and counted again.
local function count_completed(queue, number)
  if type(try('HINCRBY', base .. 'completions', queue, number)) == 'table' then
    set_aside('completions')
  end
end

-- Add a hint. One is enough: a claim that takes it and leaves due jobs adds the next one.
local function wake(queue)
  local key = base .. 'wake:' .. queue
  if call('EXISTS', key) == 0 then
    call('LPUSH', key, '')
  end
end

