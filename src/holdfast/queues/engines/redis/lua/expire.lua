-- Let every lease of these sessions expire now. ARGV: the sessions. Returns how many leases expired, and the ids of
-- dead-lettered jobs.
local theirs, expired = {}, 0
for _, session in ipairs(ARGV) do
  theirs[session] = true
end
for _, queue in ipairs(call('SMEMBERS', base .. 'queues')) do
  for _, token in ipairs(call('ZRANGE', base .. 'leased:' .. queue, 0, -1)) do
    if theirs[string.sub(token, 1, 8)] then
      for _, job in ipairs(held_jobs(token, queue)) do
        if job[3] > now then
          renew(job[1], job[2], queue, now)
          expired = expired + 1
        end
      end
      call('ZADD', base .. 'leased:' .. queue, now, token)
    end
  end
end
return { expired, dead_lettered }
