-- Delete finished jobs whose ids need not stay known, and return those whose ids must: the caller computes their
-- digest. ARGV: state, queue or nothing, the least age or nothing, how long after finishing an id stays known
-- (nothing: an hour from now), how many, and how many bytes of messages to return. Returns how many were deleted, how
-- many entries were removed from the index, and the id, number and message of each of the others.
local state, queue, age, kept = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local removed, left, named = 0, 0, {}
for _, name in ipairs(queue ~= '' and { queue } or call('SMEMBERS', base .. 'queues')) do
  local finished = base .. FINISHED[state] .. name
  local before = age and now - age or '+inf'
  local old = call('ZRANGEBYSCORE', finished, '-inf', before, 'WITHSCORES', 'LIMIT', 0, limit - removed - #named)
  for place = 1, #old, 2 do
    local score = old[place + 1]
    for _, id in ipairs(lines(old[place])) do
      local record = fields(base .. 'job:' .. id, 'state', 'number')
      if removed + #named == limit then
        break
      elseif state_of(record[1]) ~= state then
        -- The record is gone, or another program has listed a job that is not finished: only the entry is removed.
        left = left + leave(id, state, name, score)
      elseif kept and score + kept <= now then
        removed = removed + remove(id)
        left = left + leave(id, state, name, score)
      elseif bytes > 0 then
        local wire = message_of(id) or ''
        bytes = bytes - #wire
        named[#named + 1] = { id, record[2] or '', wire }
      end
    end
  end
end
return { removed, left + all_left(), named }
