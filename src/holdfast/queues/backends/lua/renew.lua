-- ARGV: id and claim of each lease. Answers for each 0 (lost), 1 (held) or 2 (held, and to be cancelled).
local answers = {}
for at = 1, #ARGV, 2 do
  local id, token = ARGV[at], ARGV[at + 1]
  local record = call('HMGET', base .. 'job:' .. id, 'state', 'lease', 'queue', 'cancel_request')
  if held_until(id, token, record[1], record[2], record[3]) then
    local _, _, length = read_lease(record[2])
    call('ZADD', base .. 'leased:' .. record[3], now + length, id)
    answers[#answers + 1] = record[4] and 2 or 1
  else
    answers[#answers + 1] = 0
  end
end
return answers
