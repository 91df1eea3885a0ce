-- Forget finished jobs whose ids need not stay known, and name those whose ids must: their digest is for the caller to
-- make. ARGV: state, queue or nothing, the least age or nothing, how long after finishing an id stays known (nothing:
-- an hour from now), how many, and how many bytes of messages to name. Answers how many were forgotten, and of the
-- others id, number and message.
local state, queue, age, kept = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local removed, named = 0, {}
for _, name in ipairs(queue ~= '' and { queue } or call('SMEMBERS', base .. 'queues')) do
  local finished = base .. FINISHED[state] .. name
  local before = age and now - age or '+inf'
  local old = call('ZRANGEBYSCORE', finished, '-inf', before, 'WITHSCORES', 'LIMIT', 0, limit - removed - #named)
  for place = 1, #old, 2 do
    local score = old[place + 1]
    for _, id in ipairs(lines(old[place])) do
      if removed + #named == limit then
        break
      elseif kept and score + kept <= now then
        -- Another program may have listed a job that is not finished: only its entry is removed. An entry without a
        -- record is not counted, so that the caller stops even if the entry cannot be removed.
        if state_of(state_field(id)) == state then
          removed = removed + remove(id)
        end
        leave(id, state, name, score)
      elseif bytes > 0 then
        local wire = message_of(id) or ''
        bytes = bytes - #wire
        named[#named + 1] = { id, fields(base .. 'job:' .. id, 'number')[1] or '', wire }
      end
    end
  end
end
all_left()
return { removed, named }
