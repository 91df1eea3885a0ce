-- ARGV: worker, order. An order is never taken back, and never made less urgent. Answers whether the worker is known.
local worker = base .. 'worker:' .. ARGV[1]
if call('EXISTS', worker) == 0 then
  return 0
end
if call('HGET', worker, 'order') ~= 'now' then
  call('HSET', worker, 'order', ARGV[2])
end
return 1
