-- ARGV: what is reported (`progress` or `output`), then id, claim and report of each. Returns for each 1 if it was
-- stored, else 0.
local answers = {}
for at = 2, #ARGV, 3 do
  local id, token, report = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local field = state_field(id)
  local is_held = held_until(token, field)
  if is_held then
    local _, deliveries = read_state(field)
    if ARGV[1] == 'output' then
      write('HSET', 'told:' .. id, { 'output:' .. deliveries, report })
    else
      write('HSET', 'told:' .. id, { 'progress', report, 'progress_of', deliveries, 'progress_at', now })
    end
  end
  answers[#answers + 1] = is_held and 1 or 0
end
return answers
