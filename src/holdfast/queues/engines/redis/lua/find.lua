-- Search jobs, newest first. ARGV: how many to return, how many to check, the score and the id after which to continue
-- (empty at the start), whether to sort by the time of finishing, states, queue, job, dead reason, finished before, ids
-- (separated by line feeds, like the states), accepted from, accepted before, finished from (each condition may be
-- empty). Returns the time, the records with their scores, the score and id of the last job checked, and whether it was
-- the last of all.
local limit, budget, after_score, after_id = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local by_finish, finished_before, finished_from = ARGV[5] == '1', tonumber(ARGV[10]), tonumber(ARGV[14])
local accepted_from, accepted_before = tonumber(ARGV[12]), tonumber(ARGV[13])
local FEW = 10000

local states, asked = lines(ARGV[6]), {}
for _, state in ipairs(states) do
  asked[state] = true
end
local queues = ARGV[7] ~= '' and { ARGV[7] } or call('SMEMBERS', base .. 'queues')

local function is_newer(score, id, other_score, other_id)
  return score > other_score or (score == other_score and id > other_id)
end

local function number(stored)
  return tonumber(stored or 0) or 0
end

local function matches(id)
  local record = fields(base .. 'job:' .. id, 'state', 'queue', 'job', 'dead_reason', 'due_at', 'accepted_at')
  local state = state_of(record[1])
  if not state or state == FORGOTTEN then
    return false
  elseif state == WAITING then
    state = number(record[5]) > now and 'scheduled' or 'pending'
  end
  local is_timed = FINISHED[state] and (finished_before or finished_from)
  local finished, accepted = is_timed and finished_at(id, record[1], record[2]), number(record[6])
  return (#states == 0 or asked[state])
    and (ARGV[7] == '' or ARGV[7] == record[2])
    and (ARGV[8] == '' or ARGV[8] == record[3])
    and (ARGV[9] == '' or ARGV[9] == record[4])
    and (not finished_before or (finished and finished < finished_before))
    and (not finished_from or (finished and finished >= finished_from))
    and (not accepted_from or accepted >= accepted_from)
    and (not accepted_before or accepted < accepted_before)
end

local function is_behind(score, id)
  return not after_score or is_newer(after_score, after_id, score, id)
end

local function by_newness(first, second)
  return is_newer(first[1], first[2], second[1], second[2])
end

-- A stream of the members of an index with their scores, the highest first, read in portions.
local function members(key)
  local highest = after_score and digits(after_score) or '+inf'
  local offset, portion, place = 0, {}, 1
  return function()
    if place > #portion then
      portion = call('ZREVRANGEBYSCORE', key, highest, '-inf', 'WITHSCORES', 'LIMIT', offset, 50)
      offset, place = offset + #portion / 2, 1
    end
    place = place + 2
    return tonumber(portion[place - 1]), portion[place - 2]
  end
end

-- A stream of the jobs of an index, newest first. A member may be several jobs, and share its score with other members.
local function stream(key)
  local source = members(key)
  local score, member = source()
  local alike, place = {}, 0
  return function()
    place = place + 1
    while not alike[place] and score do
      local this = score
      alike, place = {}, 1
      while score == this do
        for _, id in ipairs(lines(member)) do
          if is_behind(score, id) then
            alike[#alike + 1] = { score, id }
          end
        end
        score, member = source()
      end
      table.sort(alike, by_newness)
    end
    return alike[place]
  end
end

-- A stream of the few jobs with these ids.
local function few(ids)
  local found, seen, place = {}, {}, 0
  for _, id in ipairs(ids) do
    local record = fields(base .. 'job:' .. id, 'state', 'queue', 'number')
    local score = tonumber(record[3] or nil)
    if by_finish then
      score = FINISHED[state_of(record[1])] and finished_at(id, record[1], record[2])
    end
    if score and not seen[id] and is_behind(score, id) then
      found[#found + 1] = { score, id }
    end
    seen[id] = true
  end
  table.sort(found, by_newness)
  return function()
    place = place + 1
    return found[place]
  end
end

local READY, LEASED = 'ready:', 'leased:'
local WHERE = { ['pending'] = READY, ['scheduled'] = READY, [FAILED] = 'failed:', [PROCESSING] = LEASED,
  [BLOCKED] = 'blocked:' }

-- The ids in the indexes that hold every unfinished job in the requested states, and perhaps others; nil if a requested
-- state has no such index, or if there are too many.
local function unfinished()
  local names, ids = {}, {}
  for _, state in ipairs(states) do
    if not WHERE[state] then
      return nil
    end
    names[WHERE[state]] = true
  end
  for name in pairs(names) do
    for _, queue in ipairs(queues) do
      for priority = 0, name == READY and 9 or 0 do
        local key = base .. name .. queue .. (name == READY and ':' .. priority or '')
        for _, member in ipairs(call('ZRANGE', key, 0, FEW - #ids)) do
          -- The index has claims, not their jobs.
          local given = name == LEASED and fields(base .. 'claim:' .. member .. ':' .. queue, 'ids')[1]
          for _, id in ipairs(given and lines(given) or { member }) do
            ids[#ids + 1] = id
          end
          if #ids > FEW then
            return nil
          end
        end
      end
    end
  end
  return ids
end

local function streams()
  if ARGV[11] ~= '' then
    return { few(lines(ARGV[11])) }
  end
  if by_finish then
    local all = {}
    for state in pairs(asked) do
      for _, queue in ipairs(queues) do
        all[#all + 1] = stream(base .. FINISHED[state] .. queue)
      end
    end
    return all
  end
  local ids = #states > 0 and unfinished()
  return { ids and few(ids) or stream(base .. 'jobs') }
end

local sources, heads = streams(), {}
for place, source in ipairs(sources) do
  heads[place] = source() or false
end

local rows, last = {}, { after_score or 0, after_id }
for _ = 1, budget do
  local newest
  for place, head in ipairs(heads) do
    if head and (not newest or is_newer(head[1], head[2], heads[newest][1], heads[newest][2])) then
      newest = place
    end
  end
  if not newest or #rows == limit then
    return { now, rows, digits(last[1]), last[2], newest and 0 or 1 }
  end
  last = heads[newest]
  heads[newest] = sources[newest]() or false
  if matches(last[2]) then
    local row = view(last[2])
    row[#row + 1] = digits(last[1])
    rows[#rows + 1] = row
  end
end
return { now, rows, digits(last[1]), last[2], 0 }
