-- Dead-letter jobs that cannot be delivered. ARGV: queue, the claim that holds them, ids.
local queue, token = ARGV[1], ARGV[2]
for place = 3, #ARGV do
  if held_until(token, state_field(ARGV[place])) then
    dead_letter(ARGV[place], queue)
    let_go(token, queue, { ARGV[place] })
  end
end
