-- Promote jobs that wait for a slot with a free place. ARGV: the name after which to continue, how many slots to check,
-- and how many to promote in. Returns how many jobs were promoted, the last slot checked if there may be more, the ids
-- of dead-lettered jobs, and whether there are notes on parents.
local limit, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local names = call('ZRANGEBYLEX', base .. 'waited', '(' .. ARGV[1], '+', 'LIMIT', 0, limit)
local chosen, last = {}, #names == limit and names[limit]
for _, name in ipairs(names) do
  locked._read({ [name] = true })
  local _, closed_until = rows.size(name)
  if locked._size(name, 1) > 0 and (next(gone[name]) or not next(taken[name]) or closed_until > 0) then
    chosen[#chosen + 1] = name
    if #chosen == most then
      last = name
      break
    end
  end
end
local promoted = locked.promote(chosen)
return { promoted, last, dead_lettered, call('EXISTS', base .. 'notes') }
