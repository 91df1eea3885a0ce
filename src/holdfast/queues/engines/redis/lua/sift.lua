-- Delete finished jobs whose ids need not stay known, and return those whose ids must: the caller computes their
-- digest. ARGV: state, queue or nothing, the least age or nothing, how long after finishing an id stays known (nothing:
-- an hour from now), how many, how many bytes of messages to return, whether to spare the parents of unfinished jobs,
-- and how many of the first entries to skip because they are spared. Returns how many were deleted, how many entries
-- were removed from the index, the id, number and message of each of the others, and how many entries to skip next.
local state, queue, age, kept = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, bytes, spares, skipped = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1', tonumber(ARGV[8])
-- How many children of parents one call checks.
local MAX_CHECKED = 10000
local removed, left, named, spared, checked = 0, 0, {}, 0, 0

local function is_spared(id)
  local parent = spares and is_any_watched() and text(try('HGET', base .. 'watched', id))
  if not parent then
    return false
  end
  local is_needed, number = has_unfinished_child(parent)
  checked = checked + number
  return is_needed
end

-- Delete the jobs of an entry, or collect them. Returns whether there was room for all of them.
local function sift(name, members, score)
  local is_needed = false
  for _, id in ipairs(lines(members)) do
    local record = fields(base .. 'job:' .. id, 'state', 'number')
    if removed + #named == limit or bytes <= 0 then
      return false
    elseif state_of(record[1]) ~= state then
      -- The record is gone, or another program has listed a job that is not finished: only the entry is removed.
      left = left + leave(id, state, name, score)
    elseif is_spared(id) then
      is_needed = true
    elseif kept and score + kept <= now then
      removed = removed + remove(id, record[2])
      left = left + leave(id, state, name, score)
    else
      local wire = message_of(id) or ''
      bytes = bytes - #wire
      named[#named + 1] = { id, record[2] or '', wire }
    end
  end
  spared = spared + (is_needed and 1 or 0)
  return true
end

local function sift_all()
  local before, to_skip = age and now - age or '+inf', skipped
  for _, name in ipairs(queue ~= '' and { queue } or call('SMEMBERS', base .. 'queues')) do
    local finished = base .. FINISHED[state] .. name
    local number = to_skip > 0 and call('ZCOUNT', finished, '-inf', before) or 0
    if to_skip == 0 or number > to_skip then
      local old = call('ZRANGEBYSCORE', finished, '-inf', before, 'WITHSCORES', 'LIMIT', to_skip, limit)
      for place = 1, #old, 2 do
        if checked > MAX_CHECKED or not sift(name, old[place], old[place + 1]) then
          return
        end
      end
    end
    to_skip = math.max(0, to_skip - number)
  end
end

sift_all()
left = left + all_left()
resolve_noted()
return { removed, left, named, skipped + spared }
