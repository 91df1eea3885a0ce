-- ARGV: id, claim and report of each. Answers for each whether it was kept.
local answers = {}
for at = 1, #ARGV, 3 do
  local id, token, report = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local record = call('HMGET', base .. 'job:' .. id, 'state', 'lease', 'queue', 'deliveries')
  local held = held_until(id, token, record[1], record[2], record[3])
  if held then
    call('HSET', base .. 'told:' .. id, 'progress', report, 'progress_of', record[4], 'progress_at', now)
  end
  answers[#answers + 1] = held and 1 or 0
end
return answers
