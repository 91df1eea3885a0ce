-- ARGV: queue. Returns whether it was paused.
local was_paused = call('HDEL', base .. 'pauses', ARGV[1])
if was_paused == 1 then
  wake(ARGV[1])
end
return was_paused
