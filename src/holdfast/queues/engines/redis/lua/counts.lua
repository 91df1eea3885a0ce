-- ARGV: the queue, if not all. Returns for each queue its name and how many jobs are pending, scheduled, failed,
-- processing, blocked, completed, dead and cancelled.
local answer = {}
local after = '(' .. at_once
for _, queue in ipairs(ARGV[1] and { ARGV[1] } or call('SMEMBERS', base .. 'queues')) do
  local failed = base .. 'failed:' .. queue
  -- Failed jobs are also among the waiting ones, but are counted only as failed.
  local pending, scheduled = -call('ZCOUNT', failed, '-inf', now), -call('ZCOUNT', failed, after, '+inf')
  for priority = 0, 9 do
    local ready = base .. 'ready:' .. queue .. ':' .. priority
    pending = pending + call('ZCOUNT', ready, '-inf', now)
    scheduled = scheduled + call('ZCOUNT', ready, after, '+inf')
  end
  local processing = 0
  for _, token in ipairs(call('ZRANGE', base .. 'leased:' .. queue, 0, -1)) do
    processing = processing + count(fields(base .. 'claim:' .. token .. ':' .. queue, 'held')[1])
  end
  answer[#answer + 1] = {
    queue, pending, scheduled, call('ZCARD', failed), processing, call('ZCARD', base .. 'blocked:' .. queue),
    count(call('HGET', base .. 'completions', queue)), call('ZCARD', base .. 'dead:' .. queue),
    call('ZCARD', base .. 'cancelled:' .. queue),
  }
end
return answer
