-- Delete the notes of indexes that were rebuilt, unless they were set aside again since. ARGV: name and time of each.
-- Children whose edges were rebuilt are decided about again.
local children = {}
for place = 1, #ARGV, 2 do
  if call('HGET', base .. 'rebuild', ARGV[place]) == ARGV[place + 1] then
    call('HDEL', base .. 'rebuild', ARGV[place])
    children[#children + 1] = string.match(ARGV[place], '^parents:(.*)$')
  end
end
for _, child in ipairs(children) do
  decide(child)
end
return dead_lettered
