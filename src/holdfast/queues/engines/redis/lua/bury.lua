-- Delete jobs and leave tombstones. ARGV: state, how long after finishing an id stays known (nothing: an hour from
-- now), an hour; then id, number and digest of each. Returns how many were deleted.
local state, kept, hour = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local buried = 0
for at = 4, #ARGV, 3 do
  local id, number, digest = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local record = fields(base .. 'job:' .. id, 'state', 'number', 'queue')
  if state_of(record[1]) == state and (record[2] or '') == number and record[3] then
    local finished = finished_at(id, record[1], record[3])
    bury(id, number, digest, kept and finished + kept or now + hour)
    leave(id, state, record[3], digits(finished))
    buried = buried + 1
  end
end
all_left()
resolve_noted()
return buried
