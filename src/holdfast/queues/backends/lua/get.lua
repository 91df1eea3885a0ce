-- ARGV: id. Answers nothing, or the time, the record as people see it, all its fields, and what its attempts tell.
local state = call('HGET', base .. 'job:' .. ARGV[1], 'state')
if not state or state == FORGOTTEN then
  return false
end
return { now, view(ARGV[1]), call('HGETALL', base .. 'job:' .. ARGV[1]), call('HGETALL', base .. 'told:' .. ARGV[1]) }
