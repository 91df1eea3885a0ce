-- Returns the time, and for each queue and priority with waiting jobs the queue and when the first of them is due.
local firsts = {}
for _, queue in ipairs(call('SMEMBERS', base .. 'queues')) do
  for priority = 0, 9 do
    local first = call('ZRANGE', base .. 'ready:' .. queue .. ':' .. priority, 0, 0, 'WITHSCORES')
    if first[2] then
      firsts[#firsts + 1] = { queue, first[2] }
    end
  end
end
return { now, firsts }
