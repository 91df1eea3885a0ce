-- Let each claimed job take all of its slots, or block it on the first one that is full. ARGV, packed, for each entry:
-- id, claim, queue, and its slots: name, size, and the kind and key of the cell that makes the entry unnecessary, if
-- any. Returns the time, the answer to each entry (outcome, fence, cell), and the ids of dead-lettered jobs.
local entries = cmsgpack.unpack(ARGV[1])

function rows.lock(names)
  for place, fence in ipairs(each('ZMSCORE', base .. 'slots', names)) do
    fences[names[place]] = time_of(fence)
  end
end

function rows.held(entries)
  local held = {}
  for place, entry in ipairs(entries) do
    held[place] = held_until(entry[2], state_field(entry[1]))
  end
  return held
end

-- The live cells that these entries name, by kind and key.
function rows.cells(entries)
  local cells = {}
  for _, entry in ipairs(entries) do
    for _, slot in ipairs(entry[4]) do
      local kind, key = slot[3], slot[4]
      if kind then
        local version, expires, value = read_cell(call('HGET', base .. 'cells:' .. kind, key))
        if version and is_live(expires) then
          cells[kind .. ' ' .. key] = { kind, key, value, version, expires or false }
        end
      end
    end
  end
  return cells
end

local function cell_of(slot, done)
  return slot[3] and done[slot[3] .. ' ' .. slot[4]]
end

-- If it would expire later than is possible, its row is damaged or the clock was set back.
local function is_recent(promotion)
  return promotion.until_us > now and promotion.until_us <= now + PROMOTION_US
end

-- Whether there is no place for this job. A new job cannot take the places of recently promoted ones.
function locked._is_full(slot, number, is_promoted)
  local name, size = slot[1], slot[2]
  local others = 0
  for _, place in pairs(taken[name]) do
    if place.number ~= number and (place.owner_token or (not is_promoted and is_recent(place))) then
      others = others + 1
    end
  end
  return others >= locked._size(name, size)
end

-- Take a place in every slot. Returns the fence number, which is greater than the last one of each slot.
function locked._take(entry, changes)
  local number, token, queue, slots = unpack(entry)
  local fence = now
  for _, slot in ipairs(slots) do
    fence = math.max(fence, fences[slot[1]] + 1)
  end
  for _, slot in ipairs(slots) do
    local place = { slot = slot[1], number = number, queue = queue, owner_token = token, fence = fence }
    table.insert(changes.taken, place)
    taken[place.slot][number] = place
    fences[place.slot] = fence
  end
  return fence
end

function locked._enter(entry, done, changes)
  local number, token, queue, slots = unpack(entry)
  local is_repeated, is_promoted, fence, full, spared, cell = true, false, 0, nil, {}, nil
  for _, slot in ipairs(slots) do
    local place = taken[slot[1]][number]
    is_repeated = is_repeated and place and place.owner_token == token
    -- A job that was promoted in one slot does not wait for jobs promoted in another, which may be waiting for it.
    is_promoted = is_promoted or place
    fence = math.max(fence, place and place.fence or 0)
  end
  for _, slot in ipairs(slots) do
    full = full or locked._is_full(slot, number, is_promoted) and slot
    if cell_of(slot, done) then
      spared[#spared + 1] = slot[1]
      cell = cell or cell_of(slot, done)
    end
  end
  if is_repeated then
    -- The entry was repeated because its answer was lost.
    return { 'entered', fence }
  end
  if #spared == 0 and not full then
    return { 'entered', locked._take(entry, changes) }
  end
  for _, slot in ipairs(slots) do
    if taken[slot[1]][number] then
      taken[slot[1]][number] = nil
      table.insert(changes.freed, { slot[1], number })
    end
  end
  if #spared == 0 then
    local waiter = { slot = full[1], number = number, queue = queue, size = full[2], owner_token = token }
    table.insert(changes.blocked, waiter)
    return { 'blocked', 0 }
  end
  for _, name in ipairs(spared) do
    changes.finished[name] = true
  end
  return { 'spared', 0, cell }
end

function locked.enter(entries)
  local held, done = rows.held(entries), rows.cells(entries)
  local names = {}
  for _, entry in ipairs(entries) do
    for _, slot in ipairs(entry[4]) do
      names[slot[1]] = true
    end
  end
  rows.lock(sorted(names))
  locked._read(names)
  local changes, answers = { taken = {}, freed = {}, blocked = {}, finished = {} }, {}
  for place, entry in ipairs(entries) do
    answers[place] = held[place] and locked._enter(entry, done, changes) or { 'lost', 0 }
  end
  rows.free(changes.freed)
  rows.take(changes.taken)
  rows.block(changes.blocked)
  local freed = {}
  for name in pairs(changes.finished) do
    freed[name] = 0
  end
  for _, one in ipairs(changes.freed) do
    freed[one[1]] = (freed[one[1]] or 0) + 1
  end
  for _, waiter in ipairs(changes.blocked) do
    -- A place may be reserved for a job of another queue, which is perhaps paused.
    if locked._has_place(waiter) then
      freed[waiter.slot] = (freed[waiter.slot] or 0) + 1
    end
  end
  locked._promote(freed, changes.finished)
  return answers
end

return { now, locked.enter(entries), dead_lettered }
