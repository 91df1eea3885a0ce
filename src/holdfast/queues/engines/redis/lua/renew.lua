-- ARGV: id and claim of each lease. Returns for each 0 (lost), 1 (held) or 2 (held, and cancellation was requested).
local answers, lengths = {}, {}
for at = 1, #ARGV, 2 do
  local id, token = ARGV[at], ARGV[at + 1]
  local record = fields(base .. 'job:' .. id, 'state', 'queue', 'cancel_request')
  if record[2] and held_until(token, record[1]) then
    local claim = base .. 'claim:' .. token .. ':' .. record[2]
    lengths[claim] = lengths[claim] or length_of(fields(claim, 'length')[1]) or 0
    renew(id, record[1], record[2], now + lengths[claim])
    answers[#answers + 1] = record[3] and 2 or 1
  else
    answers[#answers + 1] = 0
  end
end
return answers
