-- What every script begins with: the time, the states and the names of the keys. All keys of an installation carry the
-- same hash tag, KEYS[1] begins with it, so in a cluster they live on one node. Times are microseconds since the epoch.
--
--   job:<id>                    hash: the record; its field `state` is the truth
--   wire:<id>                   string: the signed message, written once
--   told:<id>                   hash: what attempts have to tell (by delivery), the latest progress, and what attempts
--                               have printed (`output:<delivery>`) that have not told it themselves
--
-- The first character of `state` is the state; then come the number of deliveries and, of a job that is held or was
-- acknowledged, a colon, an instant (the end of the lease, or when it completed), a space, the claim (16 bytes), and of
-- an acknowledgement the verdict (one letter), start and end (8 bytes each, the highest first; 0 without a record).
--
-- The others are indexes of it. A score is kept nowhere else, but for those instants, and the due time, which outlives
-- its index:
--
--   jobs                        zset by number: every record that is not forgotten
--   ready:<queue>:<priority>    zset by due time: jobs that wait, due or not
--   failed:<queue>              zset by due time: those of them that wait for a retry
--   again:<queue>               set: those of them that were delivered before
--   claim:<token>:<queue>       hash: what a claim was given (`ids`, a line each), when (`at`), for how long (`length`),
--                               and how many of these it holds (`held`); gone with the last one
--   leased:<queue>              zset: claims that hold jobs, by when the next lease of them may end
--   renewed:<queue>             zset by the end of the lease: jobs that are held longer than they were claimed for
--   completed:<queue>           zset by the time of finishing: ids, a line each, of some jobs that completed together
--   completions                 hash: how many completed jobs each queue has
--   dead: cancelled:            zsets by the time of finishing, per queue
--   stones                      zset: ids of forgotten jobs, by when they become free
--   wake:<queue>                list: a hint that the queue has work, never more than one, and never the work itself
--
-- Shared state:
--
--   cells:<kind>                hash: the cells of a kind by key; dropped and expired ones stay until they are swept
--   keys:<kind>                 zset, every score 0: the keys of these cells, in the order of their bytes
--   expiries                    zset: kind, space and key of cells that expire, by when they may be swept
--   buckets                     zset: token buckets, by when they are full
--
-- Other programs may write any of these keys. A key of the wrong type is renamed to `damaged:<key>`; the name of an index
-- is noted in the hash `rebuild`, with the time, until the index has been rebuilt from the records. A job without a
-- readable record becomes a dead letter. Nothing is deleted.
--
-- What a server does for each command and each of its words is most of what a job costs. So a claim and an
-- acknowledgement write one field of each job, and what is alike for all of a batch is written once.
local base = KEYS[1]
local call, try = redis.call, redis.pcall
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

-- A number as the server shall read it. Given as a number it would be written anew for each command.
local function digits(number)
  return string.format('%.0f', number)
end

local at_once = digits(now)
local WAITING, FAILED, PROCESSING, BLOCKED, COMPLETED, DEAD, CANCELLED, FORGOTTEN =
  '0', '1', '2', '3', '4', '5', '6', '7'
local FINISHED = { [COMPLETED] = 'completed:', [DEAD] = 'dead:', [CANCELLED] = 'cancelled:' }

-- The field `state`, taken apart: state, deliveries, instant, the claim and what follows it.
local function read_state(field)
  local deliveries, instant, rest = string.match(field, '^(%d*):?(%d*) ?(.*)$', 2)
  return string.sub(field, 1, 1), tonumber(deliveries) or 0, tonumber(instant), rest
end

-- Fields of a hash; none if the key is of another type.
local function fields(key, ...)
  local found = try('HMGET', key, ...)
  return found.err and {} or found
end

-- What a command answers, if that is a text: neither missing nor an error.
local function text(answer)
  return type(answer) == 'string' and answer
end

local function state_field(id)
  return text(try('HGET', base .. 'job:' .. id, 'state'))
end

local function message_of(id)
  return text(try('GET', base .. 'wire:' .. id))
end

-- A counter stops where every engine can still store it.
local MANY = 2147483646
local function count(stored)
  local number = math.floor(tonumber(stored or 0) or 0)
  return number == number and math.max(0, math.min(number, MANY)) or 0
end

local function state_of(field)
  return field and string.sub(field, 1, 1)
end

-- When a finished job was.
local function finished_at(id, field, queue)
  local state, _, instant = read_state(field)
  return instant or tonumber(call('ZSCORE', base .. FINISHED[state] .. (queue or ''), id) or 0)
end

-- The lines of a text: ids, of which none has a line feed.
local function lines(text)
  local found = {}
  for line in string.gmatch(text or '', '[^\n]+') do
    found[#found + 1] = line
  end
  return found
end

-- What a command that takes many members answers, in their order.
local function each(command, key, members)
  local answers = {}
  for first = 1, #members, 1000 do
    for _, answer in ipairs(call(command, key, unpack(members, first, math.min(first + 999, #members)))) do
      answers[#answers + 1] = answer
    end
  end
  return answers
end

-- Rename a key of the wrong type; what was renamed before is not overwritten. An index will be rebuilt.
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

-- Write many values to a key, in portions that fit Lua's stack; pairs are never torn. A key of another type is set
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

-- Count completed jobs. A count that cannot be added to is set aside, and counted again.
local function count_completed(queue, number)
  if type(try('HINCRBY', base .. 'completions', queue, number)) == 'table' then
    set_aside('completions')
  end
end

-- One hint is enough: whoever takes it and leaves work behind gives the next one.
local function wake(queue)
  local key = base .. 'wake:' .. queue
  if call('EXISTS', key) == 0 then
    call('LPUSH', key, '')
  end
end

