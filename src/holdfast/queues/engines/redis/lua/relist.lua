-- List the slots that jobs hold again, after the index of used slots was rebuilt with those that jobs wait for.
for _, name in ipairs(call('ZRANGE', base .. 'slots', 0, -1)) do
  if call('EXISTS', base .. 'places:' .. name) == 1 then
    call('ZADD', base .. 'used', 0, name)
  end
end
