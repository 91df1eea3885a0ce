-- The view of a record: id, message, the fields below, deliveries, when it finished, when its lease expires, and the
-- latest progress with its time, if it is shown; the slot of a blocked job, and since when it is blocked.
local VIEW = { 'number', 'queue', 'state', 'job', 'attempts', 'crashes', 'accepted_at', 'due_at', 'dead_reason',
  'cancel_reason', 'cancel_request', 'last_error' }
local SHOWS_PROGRESS = { [FAILED] = true, [PROCESSING] = true, [DEAD] = true, [CANCELLED] = true }

local function view(id)
  local record = fields(base .. 'job:' .. id, unpack(VIEW))
  local queue, field = record[2], record[3] or ''
  local state, deliveries, lease_until = read_state(field)
  record[3] = state
  -- An acknowledgement does not delete fields that mean nothing any more: they are not shown.
  if state == COMPLETED then
    record[6], record[11], record[12] = false, false, false
  end
  local told = fields(base .. 'told:' .. id, 'progress_of', 'progress', 'progress_at')
  local is_shown = SHOWS_PROGRESS[state] and tonumber(told[1] or -1) == deliveries
  local row = { id, message_of(id) }
  for place = 1, #VIEW do
    row[place + 2] = record[place] or false
  end
  row[15] = deliveries
  row[16] = FINISHED[state] and finished_at(id, field, queue) or false
  row[17] = state == PROCESSING and lease_until or false
  row[18], row[19] = is_shown and told[2] or false, is_shown and told[3] or false
  local slot, _, since = blocked_on(field)
  row[20], row[21] = slot or false, since or false
  return row
end
