-- ARGV: queues. Returns the time, and when the next job of these queues is due, or -1.
local due = -1
for _, queue in ipairs(ARGV) do
  if call('HEXISTS', base .. 'pauses', queue) == 0 then
    for priority = 0, 9 do
      local first = call('ZRANGE', base .. 'ready:' .. queue .. ':' .. priority, 0, 0, 'WITHSCORES')
      if first[2] and (due < 0 or tonumber(first[2]) < due) then
        due = tonumber(first[2])
      end
    end
  end
end
return { now, due }
