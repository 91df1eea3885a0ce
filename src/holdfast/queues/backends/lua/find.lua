-- Some jobs, newest first. ARGV: how many, how many to look at, the score and the id behind which to go on (empty for
-- the start), whether by the time of finishing, states, queue, job, dead reason, finished before, ids (separated by
-- line feeds, like the states; each condition may be empty). Answers the time, the records with their scores, the score
-- and id of the last job looked at, and whether there was nothing behind it.
local limit, budget, after_score, after_id = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local by_finish, finished_before = ARGV[5] == '1', tonumber(ARGV[10])
local FEW = 10000

local function words(text)
  local found = {}
  for word in string.gmatch(text, '[^\n]+') do
    found[#found + 1] = word
  end
  return found
end

local states, asked = words(ARGV[6]), {}
for _, state in ipairs(states) do
  asked[state] = true
end
local queues = ARGV[7] ~= '' and { ARGV[7] } or call('SMEMBERS', base .. 'queues')

local function is_newer(score, id, other_score, other_id)
  return score > other_score or (score == other_score and id > other_id)
end

local function finished_at(id, state, queue)
  return tonumber(call('ZSCORE', base .. FINISHED[state] .. queue, id))
end

local function matches(id)
  local record = call('HMGET', base .. 'job:' .. id, 'state', 'queue', 'job', 'dead_reason', 'due_at')
  local state = record[1]
  if not state or state == FORGOTTEN then
    return false
  elseif state == WAITING then
    state = tonumber(record[5]) > now and 'scheduled' or 'pending'
  end
  return (#states == 0 or asked[state])
    and (ARGV[7] == '' or ARGV[7] == record[2])
    and (ARGV[8] == '' or ARGV[8] == record[3])
    and (ARGV[9] == '' or ARGV[9] == record[4])
    and (not finished_before or (FINISHED[state] and finished_at(id, state, record[2]) < finished_before))
end

-- A stream of jobs, newest first, read from an index portion by portion.
local function stream(key)
  local highest = after_score and digits(after_score) or '+inf'
  local offset, portion, place = 0, {}, 1
  return function()
    while true do
      if place > #portion then
        portion = call('ZREVRANGEBYSCORE', key, highest, '-inf', 'WITHSCORES', 'LIMIT', offset, 200)
        offset, place = offset + #portion / 2, 1
        if #portion == 0 then
          return nil
        end
      end
      local id, score = portion[place], tonumber(portion[place + 1])
      place = place + 2
      if not after_score or is_newer(after_score, after_id, score, id) then
        return { score, id }
      end
    end
  end
end

-- A stream of the few jobs with these ids.
local function few(ids)
  local found, place = {}, 0
  for _, id in ipairs(ids) do
    local record = call('HMGET', base .. 'job:' .. id, 'state', 'queue', 'number')
    local score = tonumber(record[3] or nil)
    if by_finish then
      score = FINISHED[record[1]] and finished_at(id, record[1], record[2])
    end
    if score and (not after_score or is_newer(after_score, after_id, score, id)) then
      found[#found + 1] = { score, id }
    end
  end
  table.sort(found, function(first, second) return is_newer(first[1], first[2], second[1], second[2]) end)
  return function()
    place = place + 1
    return found[place]
  end
end

local WHERE = { ['pending'] = 'ready:', ['scheduled'] = 'ready:', [FAILED] = 'failed:', [PROCESSING] = 'leased:' }

-- The indexes that hold every unfinished job of the states asked for; nil if the states do not tell.
local function indexes()
  local names, keys = {}, {}
  for _, state in ipairs(states) do
    if not WHERE[state] and state ~= BLOCKED then
      return nil
    end
    names[WHERE[state] or 'none:'] = true
  end
  for name in pairs(names) do
    for _, queue in ipairs(queues) do
      for priority = 0, name == 'ready:' and 9 or 0 do
        keys[#keys + 1] = base .. name .. queue .. (name == 'ready:' and ':' .. priority or '')
      end
    end
  end
  return keys
end

local function streams()
  if ARGV[11] ~= '' then
    return { few(words(ARGV[11])) }
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
  local keys, number = #states > 0 and indexes(), 0
  for _, key in ipairs(keys or {}) do
    number = number + call('ZCARD', key)
  end
  if not keys or number > FEW then
    return { stream(base .. 'jobs') }
  end
  local ids = {}
  for _, key in ipairs(keys) do
    for _, id in ipairs(call('ZRANGE', key, 0, -1)) do
      ids[#ids + 1] = id
    end
  end
  return { few(ids) }
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
