-- ARGV: id. Answers nothing, or the time, the record as people see it, all its fields, what its attempts tell, and how
-- it was acknowledged, if it was: the claim, the verdict, start and end.
local job = base .. 'job:' .. ARGV[1]
local field = state_field(ARGV[1])
if not field or state_of(field) == FORGOTTEN then
  return false
end
local _, _, _, how = read_state(field)
local told = try('HGETALL', base .. 'told:' .. ARGV[1])
return { now, view(ARGV[1]), call('HGETALL', job), told.err and {} or told, how }
