-- Answers the time, and of each worker its report, when it was heard, and its order.
local rows = {}
for _, worker in ipairs(call('ZRANGE', base .. 'workers', 0, -1)) do
  rows[#rows + 1] = call('HMGET', base .. 'worker:' .. worker, 'report', 'heard_at', 'order')
end
return { now, rows }
