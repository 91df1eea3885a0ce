-- Edges between jobs: the decisions of `contract/edges.py`, repeated on the keys of this server. Scripts run one at a
-- time, so nothing has to be locked: one parent is resolved after the other, by the script that leaves the note if it
-- can, and the note on a parent with nothing to do is deleted where it is read.
--
-- Functions do not fail because of a damaged key: it is set aside where it is found. While indexes are rebuilt, nothing
-- is resolved: a child whose edges are incomplete would be released too early.
local MAX_CHILDREN, MAX_NOTES = 1000, 1000
local EDGE_OPEN, EDGE_MET, EDGE_CANCELLED = 0, 10, 20
local TO_CANCEL, TO_RUN, TO_WAIT = 0, 1, 2
local PARENT_FAILED = 'parent-failed'

local edges = {}

-- The name of a job in an edge: its number (16 digits) and its id. So a new job does not inherit the edges of
-- a deleted job with the same id, and names are in the order in which the jobs were accepted.
local function name_of(id, number)
  return string.format('%016.0f', time_of(tonumber(number or nil))) .. id
end

local function id_of(name)
  return string.sub(name, 17)
end

-- The record with this name: state and these fields; nothing if it was deleted. If it cannot be read, its state is
-- false.
local function record_of(name, ...)
  local job = base .. 'job:' .. id_of(name)
  local record = fields(job, 'state', 'number', ...)
  local is_other = tonumber(record[2] or nil) and name_of(id_of(name), record[2]) ~= name
  if is_other or state_of(record[1]) == FORGOTTEN or (not record[1] and call('EXISTS', job) == 0) then
    return nil
  end
  return { record[1] or false, unpack(record, 3, 2 + select('#', ...)) }
end

-- The state of a parent; nothing if it was deleted. A parent that cannot be read is treated as unfinished.
function edges.parent(name)
  local record = record_of(name)
  return record and (state_of(record[1]) or BLOCKED)
end

-- Store the outcome of an edge, unless it was deleted. Returns false if the child's edges are damaged.
function edges.turn(parent, child, score)
  if type(try('ZADD', base .. 'parents:' .. child, 'XX', score, parent)) == 'table' then
    set_aside('parents:' .. child)
    return false
  end
  write('ZADD', 'children:' .. parent, { 'XX', score, child })
  return true
end

-- Whether any edge of this child has this outcome.
function edges.has(child, outcome)
  return found_in('ZRANGEBYSCORE', 'parents:' .. child, outcome, outcome + TO_WAIT, 'LIMIT', 0, 1)[1] ~= nil
end

-- Whether the edges of this child have to be rebuilt.
function edges.is_damaged(child)
  found_in('ZRANGE', 'parents:' .. child, 0, 0)
  return call('HEXISTS', base .. 'rebuild', 'parents:' .. child) == 1
end

-- Block a job until its parents have completed.
local function block(id, queue, deliveries, since, changes)
  changes[#changes + 1], changes[#changes + 2] = 'state', BLOCKED .. deliveries .. ':' .. digits(since)
  write('ZADD', 'blocked:' .. queue, { digits(since), id })
  write('HSET', 'job:' .. id, changes)
end

-- Dead-letter a blocked job without a readable record.
local function dead_letter_blocked(id)
  for _, queue in ipairs(found_in('SMEMBERS', 'queues')) do
    if text(try('ZSCORE', base .. 'blocked:' .. queue, id)) then
      write('ZREM', 'blocked:' .. queue, { id })
      dead_letter(id, queue)
      return
    end
  end
end

-- What happens to a child: id, record (state, queue, priority, due time).
local change = {}

function change.release(id, record)
  local _, queue, priority, due = unpack(record, 1, 4)
  write('ZREM', 'blocked:' .. queue, { id })
  move(id, queue, priority, WAITING, record.deliveries, digits(time_of(due)), {})
end

function change.cancel(id, record)
  write('ZREM', 'blocked:' .. record[2], { id })
  move(id, record[2], record[3], CANCELLED, record.deliveries, now, { 'cancel_reason', PARENT_FAILED })
end

function change.reopen(id, record)
  write('ZREM', 'cancelled:' .. record[2], { id })
  try('HDEL', base .. 'job:' .. id, 'cancel_reason')
  block(id, record[2], record.deliveries, now, {})
  note({ id })
end

-- Decide about a child whose edges have changed, if it is blocked, or was cancelled because a parent failed.
local function decide(child)
  local id = id_of(child)
  local record = record_of(child, 'queue', 'priority', 'due_at', 'cancel_reason')
  if record and not (record[1] and record[2]) then
    dead_letter_blocked(id)
    return
  end
  local state, deliveries, _, slot = read_state(record and record[1] or '')
  local is_cancelled = state == CANCELLED and record[5] == PARENT_FAILED
  if not is_cancelled and (state ~= BLOCKED or slot ~= '') then
    return
  end
  record.deliveries = count(deliveries)
  if edges.has(child, EDGE_CANCELLED) then
    if not is_cancelled then
      change.cancel(id, record)
    end
    return
  end
  if is_cancelled then
    change.reopen(id, record)
  end
  if not edges.has(child, EDGE_OPEN) then
    change.release(id, record)
  end
end

-- The changes that the state of a parent implies: the score of an edge, before and after.
local function turns_of(state)
  local turns = {}
  local function turn(policy, before, after)
    turns[#turns + 1] = { before + policy, after + policy }
  end
  if state == COMPLETED then
    for policy = TO_CANCEL, TO_WAIT do
      turn(policy, EDGE_OPEN, EDGE_MET)
      turn(policy, EDGE_CANCELLED, EDGE_MET)
    end
  elseif not state or FINISHED[state] then
    turn(TO_CANCEL, EDGE_OPEN, EDGE_CANCELLED)
    turn(TO_RUN, EDGE_OPEN, EDGE_MET)
    if not state then
      turn(TO_WAIT, EDGE_OPEN, EDGE_CANCELLED)
    end
  else
    for policy = TO_CANCEL, TO_WAIT do
      turn(policy, EDGE_CANCELLED, EDGE_OPEN)
    end
  end
  return turns
end

-- Delete the list of the children of a deleted job, or an empty one.
local function unwatch(parent)
  call('UNLINK', base .. 'children:' .. parent)
  if text(try('HGET', base .. 'watched', id_of(parent))) == parent then
    write('HDEL', 'watched', { id_of(parent) })
  end
end

function edges.forget(parent, state)
  write('ZREM', 'notes', { parent })
  if not state then
    unwatch(parent)
  end
end

local function is_rebuilding()
  return call('EXISTS', base .. 'rebuild') == 1
end

-- Turn the edges of this parent, up to a limit. Returns how many were turned.
local function turn_all(parent, state, limit)
  local changed = 0
  for _, turn in ipairs(turns_of(state)) do
    local before, after = unpack(turn)
    local found = found_in('ZRANGEBYSCORE', 'children:' .. parent, before, before, 'LIMIT', 0, limit - changed)
    for _, child in ipairs(found) do
      if edges.turn(parent, child, after) then
        changed = changed + 1
        decide(child)
      end
    end
  end
  return changed
end

-- Bring up to `MAX_CHILDREN` edges in line with the states of their parents, the latest notes first: those of this
-- script. Returns how many notes were read and how many edges were changed.
local function resolve()
  local read, changed = 0, 0
  while read < MAX_NOTES and changed < MAX_CHILDREN and not is_rebuilding() do
    local parent = found_in('ZREVRANGE', 'notes', 0, 0)[1]
    if not parent then
      break
    end
    local state = edges.parent(parent)
    read, changed = read + 1, changed + turn_all(parent, state, MAX_CHILDREN - changed)
    if changed < MAX_CHILDREN then
      edges.forget(parent, state)
    end
  end
  return { read, changed }
end

-- Resolve the notes that this script has left, if any.
local function resolve_noted()
  if has_noted then
    resolve()
  end
end

-- The first of these jobs with a parent that has no record and is not among them, as `look_up` returns jobs, with the
-- parent. `after` has the policy and the parents of jobs.
local function find_orphan(jobs, place_of, known, after)
  local there = {}
  for _, job in ipairs(next(after) and jobs or {}) do
    there[ARGV[place_of(job)]] = true
  end
  for _, job in ipairs(jobs) do
    for _, parent in ipairs(after[job] and not known[ARGV[place_of(job)]] and after[job][2] or {}) do
      if there[parent] == nil then
        local state = state_of(state_field(parent))
        there[parent] = state and state ~= FORGOTTEN or false
      end
      if not there[parent] then
        return { job, '', false, false, parent }
      end
    end
  end
end

-- Add the edges of jobs that were just stored: the name of each, its policy and its parents.
local function connect(children)
  local names, below = {}, {}
  for _, one in ipairs(children) do
    local child, policy, parents = unpack(one)
    local above = {}
    for _, id in ipairs(parents) do
      local parent = names[id] or name_of(id, fields(base .. 'job:' .. id, 'number')[1])
      names[id], below[parent] = parent, below[parent] or {}
      above[#above + 1], above[#above + 2] = EDGE_OPEN + policy, parent
      table.insert(below[parent], EDGE_OPEN + policy)
      table.insert(below[parent], child)
    end
    write('ZADD', 'parents:' .. child, above)
  end
  for id, parent in pairs(names) do
    write('ZADD', 'children:' .. parent, below[parent])
    write('HSET', 'watched', { id, parent })
    local state = edges.parent(parent)
    if not state or FINISHED[state] then
      leave_note(parent)
    end
  end
end

-- A replayed job no longer waits for parents that have failed.
local function disregard_failed(child)
  local failed = found_in('ZRANGEBYSCORE', 'parents:' .. child, EDGE_CANCELLED, EDGE_CANCELLED + TO_WAIT, 'WITHSCORES')
  for place = 1, #failed, 2 do
    edges.turn(failed[place], child, failed[place + 1] - EDGE_CANCELLED + EDGE_MET)
  end
end

-- Whether any child of this parent is unfinished, as far as can be known, and how many were checked.
local function has_unfinished_child(parent)
  local checked = 0
  local children = found_in('ZRANGE', 'children:' .. parent, 0, -1)
  if is_rebuilding() then
    return true, checked
  end
  for _, child in ipairs(children) do
    checked = checked + 1
    local record = record_of(child)
    if record and not FINISHED[state_of(record[1])] then
      return true, checked
    end
  end
  return false, checked
end

-- Remove a job that is being deleted from the children of its parents.
local function disconnect(child)
  for _, parent in ipairs(is_any_watched() and found_in('ZRANGE', 'parents:' .. child, 0, -1) or {}) do
    write('ZREM', 'children:' .. parent, { child })
    if call('EXISTS', base .. 'children:' .. parent) == 0 then
      unwatch(parent)
    end
  end
end
