-- ARGV: id. Returns nothing, or the time, the view of the record, all its fields, the details of its attempts, and its
-- acknowledgement, if there is one: the claim, the verdict, start and end.
local job = base .. 'job:' .. ARGV[1]
local field = state_field(ARGV[1])
if not field or state_of(field) == FORGOTTEN then
  return false
end
local _, _, _, how = read_state(field)
local told = try('HGETALL', base .. 'told:' .. ARGV[1])
return { now, view(ARGV[1]), call('HGETALL', job), told.err and {} or told, how }
