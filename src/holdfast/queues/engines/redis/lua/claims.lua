-- What a claim holds.

local function of_claim(token, queue, name)
  return text(try('HGET', base .. 'claim:' .. token .. ':' .. queue, name))
end

-- The jobs that this claim holds, renewed or not: id, field `state`, and the end of the lease. A job without a readable
-- record is dead-lettered.
local function held_jobs(token, queue)
  local found = {}
  for _, id in ipairs(lines(of_claim(token, queue, 'ids'))) do
    local field = state_field(id)
    if not field then
      dead_letter(id, queue)
    elseif state_of(field) == PROCESSING then
      local _, _, lease_until, owner = read_state(field)
      if owner == token then
        found[#found + 1] = { id, field, lease_until or 0 }
      end
    end
  end
  return found
end
