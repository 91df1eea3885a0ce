-- Unique keys: the decisions of `contract/uniques.py`, repeated on the hash `uniques`. Functions have the same names
-- and decide in the same order as there. Scripts run one at a time, so nothing has to be locked.
local WAITING_SCOPE, PERIOD_SCOPE = 'waiting', 'period'
local STARTED = { [PROCESSING] = true, [COMPLETED] = true, [DEAD] = true, [CANCELLED] = true }

local uniques = {}

-- The stored rows of these keys. One is stored as the end of its period, space, and the id of the job.
function uniques.lock(keys)
  local rows = {}
  for place, stored in ipairs(each('HMGET', base .. 'uniques', keys)) do
    local expires, id = string.match(stored or '', '^(%d+) (.*)$')
    rows[keys[place]] = { job_id = id or '', until_us = time_of(expires) }
  end
  return rows
end

-- The state of a known job; false if there is none.
function uniques.state(id)
  local record = fields(base .. 'job:' .. id, 'state', 'known_until')
  local state = state_of(record[1])
  if state == FORGOTTEN and time_of(record[2]) <= now then
    return false
  end
  return state or false
end

function uniques.store(taken)
  local values = {}
  for key, row in pairs(taken) do
    values[#values + 1], values[#values + 2] = key, digits(row.until_us) .. ' ' .. row.job_id
  end
  write('HSET', 'uniques', values)
end

local function is_in_scope(row, scope, state)
  if scope == PERIOD_SCOPE then
    return row.job_id ~= '' and row.until_us > now
  elseif not state or state == FORGOTTEN then
    return false
  elseif scope == WAITING_SCOPE then
    return not STARTED[state]
  end
  return not FINISHED[state] -- open
end

-- Returns the ids of the jobs that must not be stored, each with the id of the job that has its key, and the rows of
-- the keys that the others take, which the caller stores. If the call is refused, returns nil, the key and the job that
-- has it. Arguments: for each job, its id, key, scope, period, and whether to refuse the call; and `states`, the states
-- of jobs that this call is about to change.
local function find_duplicates(asking, states)
  local keys, taken, duplicates = {}, {}, {}
  for place, one in ipairs(asking) do
    keys[place] = one[2]
  end
  local stored = uniques.lock(keys)
  states = states or {}
  local function state(id)
    if states[id] == nil then
      states[id] = uniques.state(id)
    end
    return states[id]
  end
  for _, one in ipairs(asking) do
    local id, key, scope, period, rejects = unpack(one)
    local row = taken[key]
    if not state(id) and not (row and row.job_id == id) then
      if not row and not is_in_scope(stored[key], scope, state(stored[key].job_id)) then
        taken[key] = { job_id = id, until_us = scope == PERIOD_SCOPE and now + period or 0 }
      elseif rejects then
        return nil, { key, (row or stored[key]).job_id }
      else
        duplicates[id] = (row or stored[key]).job_id
      end
    end
  end
  return duplicates, taken
end

-- These jobs without the duplicates; and the number of each duplicate with the id of the job that has its key.
local function without(duplicates, jobs, place_of)
  local new, others = {}, {}
  for _, job in ipairs(jobs) do
    local existing = duplicates[ARGV[place_of(job)]]
    if existing then
      others[#others + 1] = { job, existing }
    else
      new[#new + 1] = job
    end
  end
  return new, others
end
