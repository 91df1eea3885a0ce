-- ARGV: state, how long after finishing an id stays known (nothing: an hour from now), an hour; then id, number and
-- digest of each. Answers how many were forgotten.
local state, kept, hour = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local buried = 0
for at = 4, #ARGV, 3 do
  local id, number, digest = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local record = call('HMGET', base .. 'job:' .. id, 'state', 'number', 'queue')
  if record[1] == state and record[2] == number then
    local finished_at = call('ZSCORE', base .. FINISHED[state] .. record[3], id)
    bury(id, state, record[3], number, digest, kept and finished_at + kept or now + hour)
    buried = buried + 1
  end
end
return buried
