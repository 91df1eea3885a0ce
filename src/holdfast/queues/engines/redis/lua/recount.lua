-- Count the completed jobs of each queue again, after their index was rebuilt.
for _, queue in ipairs(call('SMEMBERS', base .. 'queues')) do
  local number = 0
  for _, member in ipairs(call('ZRANGE', base .. 'completed:' .. queue, 0, -1)) do
    number = number + #lines(member)
  end
  call('HSET', base .. 'completions', queue, number)
end
