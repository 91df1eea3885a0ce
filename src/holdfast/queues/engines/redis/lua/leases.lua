-- ARGV: id and claim of each lease. Returns for each 0 (lost), 1 (held) or 2 (held, and cancellation was requested).
local answers = {}
for at = 1, #ARGV, 2 do
  local record = fields(base .. 'job:' .. ARGV[at], 'state', 'cancel_request')
  answers[#answers + 1] = held_until(ARGV[at + 1], record[1]) and (record[2] and 2 or 1) or 0
end
return answers
