-- Delete the notes of indexes that were rebuilt, unless they were set aside again since. ARGV: name and time of each.
for place = 1, #ARGV, 2 do
  if call('HGET', base .. 'rebuild', ARGV[place]) == ARGV[place + 1] then
    call('HDEL', base .. 'rebuild', ARGV[place])
  end
end
