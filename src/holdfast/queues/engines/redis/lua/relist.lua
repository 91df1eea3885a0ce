-- Add the slots that jobs hold to the index of used slots again, after it was rebuilt with the slots that jobs wait
-- for.
for _, name in ipairs(call('ZRANGE', base .. 'slots', 0, -1)) do
  if call('EXISTS', base .. 'places:' .. name) == 1 then
    call('ZADD', base .. 'used', 0, name)
  end
end
