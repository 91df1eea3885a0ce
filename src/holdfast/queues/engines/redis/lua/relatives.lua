-- ARGV: id, how many to return. Returns nothing, or the parents of the job and the first of its children (id, state,
-- whether it is due later, policy, outcome), how many of its parents are open, and how many children it has.
local id, limit = ARGV[1], tonumber(ARGV[2])
local number = fields(base .. 'job:' .. id, 'number')[1]
local field = state_field(id)
if not field or state_of(field) == FORGOTTEN then
  return false
end
local name = name_of(id, number)

-- Edges (name of the other end, score), in the order in which the jobs were accepted.
local function sorted_edges(flat)
  local found = {}
  for place = 1, #flat, 2 do
    found[#found + 1] = { flat[place], count(flat[place + 1]) }
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  return found
end

-- The first of these jobs; those that were deleted are left out.
local function rows_of(found)
  local rows = {}
  for _, edge in ipairs(found) do
    local record = record_of(edge[1], 'due_at')
    if record and #rows < limit then
      local is_later = time_of(tonumber(record[2] or nil)) > now
      rows[#rows + 1] = { id_of(edge[1]), tonumber(state_of(record[1]) or nil) or -1, is_later and 1 or 0, edge[2] % 10,
        math.floor(edge[2] / 10) }
    end
  end
  return rows
end

-- Within each score, names are in order.
local children, at = {}, 'children:' .. name
for _, outcome in ipairs({ EDGE_OPEN, EDGE_MET, EDGE_CANCELLED }) do
  for policy = TO_CANCEL, TO_WAIT do
    local score = outcome + policy
    for _, word in ipairs(found_in('ZRANGEBYSCORE', at, score, score, 'WITHSCORES', 'LIMIT', 0, limit)) do
      children[#children + 1] = word
    end
  end
end
local parents = found_in('ZRANGE', 'parents:' .. name, 0, -1, 'WITHSCORES')
local open = #found_in('ZRANGEBYSCORE', 'parents:' .. name, EDGE_OPEN, EDGE_OPEN + TO_WAIT)
local total = try('ZCARD', base .. at)
return { rows_of(sorted_edges(parents)), rows_of(sorted_edges(children)), open, type(total) == 'number' and total or 0 }
