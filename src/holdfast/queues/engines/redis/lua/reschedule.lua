-- Give each job that has not started a new message, queue, priority and due time. ARGV: jobs. Returns 1 for each job,
-- or 0 if it has started or is unknown.
local count, place_of = read_jobs(1)
local answers = {}
local immediate = now - count
for number = 1, count do
  local place = place_of(number)
  local id, queue, job, priority, wire, delay, due = unpack(ARGV, place, place + 6)
  local record = fields(base .. 'job:' .. id, 'state', 'queue', 'priority', 'due_at')
  local state, old_queue = state_of(record[1]), record[2] or ''
  immediate = immediate + 1
  answers[number] = 0
  if state == WAITING or state == FAILED or state == BLOCKED then
    local _, deliveries, since, slot = read_state(record[1])
    write('ZREM', 'ready:' .. old_queue .. ':' .. rank(record[3]), { id })
    write('ZREM', 'failed:' .. old_queue, { id })
    write('SREM', 'again:' .. old_queue, { id })
    if state == BLOCKED then
      unblock(id, record[1], old_queue, record[3], record[4])
    end
    call('SET', base .. 'wire:' .. id, wire)
    write('SADD', 'queues', { queue })
    local changes = { 'queue', queue, 'job', job, 'priority', priority }
    due = due_of(delay, due, immediate)
    if state == BLOCKED and slot == '' then
      block(id, queue, deliveries, time_of(since), { 'due_at', due, unpack(changes) })
    else
      move(id, queue, priority, WAITING, deliveries, due, changes)
    end
    answers[number] = 1
  end
end
return answers
