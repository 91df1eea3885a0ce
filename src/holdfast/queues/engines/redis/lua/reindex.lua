-- Add jobs to the indexes that were set aside. ARGV: their ids. The records are the truth, so this may run at any time,
-- and repeatedly. Only the time at which a job was dead-lettered or cancelled is lost with its index.
local set_aside_at, all = {}, call('HGETALL', base .. 'rebuild')
for place = 1, #all, 2 do
  set_aside_at[all[place]] = tonumber(all[place + 1]) or now
end

local function index(name, score, member, how)
  if set_aside_at[name] then
    try('ZADD', base .. name, how or 'NX', tonumber(score) or now, member)
  end
end

-- Restore the other ends of the edges of a job. All parents are noted: they may have ended in the meantime, and a note
-- is deleted although a damaged end of an edge could not be turned.
local has_edges = set_aside_at['watched'] or set_aside_at['notes']
for name in pairs(set_aside_at) do
  has_edges = has_edges or string.match(name, '^parents:') or string.match(name, '^children:')
end

local function reconnect(id, name)
  local above = found_in('ZRANGE', 'parents:' .. name, 0, -1, 'WITHSCORES')
  local below = found_in('ZRANGE', 'children:' .. name, 0, -1, 'WITHSCORES')
  for place = 1, #above, 2 do
    index('children:' .. above[place], above[place + 1], name)
    try('HSETNX', base .. 'watched', id_of(above[place]), above[place])
    leave_note(above[place])
  end
  for place = 1, #below, 2 do
    index('parents:' .. below[place], below[place + 1], name)
  end
  if #below > 0 then
    try('HSETNX', base .. 'watched', id, name)
    leave_note(name)
  end
end

local highest = 0
for _, id in ipairs(ARGV) do
  local field, queue, priority, due, number, known_until =
    unpack(fields(base .. 'job:' .. id, 'state', 'queue', 'priority', 'due_at', 'number', 'known_until'), 1, 6)
  local state, deliveries, instant, owner = read_state(field or '')
  queue = queue or ''
  highest = math.max(highest, tonumber(number or 0) or 0)
  if field and has_edges then
    reconnect(id, name_of(id, number))
  end
  if state == FORGOTTEN then
    index('stones', known_until, id)
  elseif field then
    index('jobs', number, id)
    if set_aside_at['queues'] then
      call('SADD', base .. 'queues', queue)
    end
    if state == WAITING or state == FAILED then
      index('ready:' .. queue .. ':' .. rank(priority), due, id)
      if state == FAILED then
        index('failed:' .. queue, due, id)
      end
      if deliveries > 0 and set_aside_at['again:' .. queue] then
        call('SADD', base .. 'again:' .. queue, id)
      end
      wake(queue)
    elseif state == PROCESSING then
      -- A claim is indexed by the first of its leases to expire.
      index('leased:' .. queue, instant, string.sub(owner, 1, 16), 'LT')
      index('renewed:' .. queue, instant, id)
    elseif state == BLOCKED then
      -- Restore all of its indexes, because damage to one may have emptied the others.
      local slot, _, since = blocked_on(field)
      if slot then
        start_waiting(slot, queue, id, member_of(id, priority, due), since)
      else
        index('blocked:' .. queue, since, id)
      end
    elseif state == COMPLETED then
      -- Jobs that completed since then are in the new index.
      if (instant or 0) < (set_aside_at['completed:' .. queue] or 0) then
        index('completed:' .. queue, instant, id)
      end
    elseif FINISHED[state] then
      index(FINISHED[state] .. queue, now, id)
    end
  end
end
if highest > tonumber(call('GET', base .. 'number') or 0) then
  call('SET', base .. 'number', digits(highest))
end
