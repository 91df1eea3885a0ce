-- Settlements that leave slots, or carry writes and jobs: a settlement and what it carries are applied together, or
-- neither is. A script that fails is not rolled back, so everything that can be refused or can fail comes before the
-- first settlement.

-- The jobs with unique keys that settlements enqueue, as `find_duplicates` takes them.
local function asking_for(wanted, place_of, can_refuse)
  local asking = {}
  for _, one in ipairs(wanted) do
    local job, key, scope, period, rejects = unpack(one)
    asking[#asking + 1] = { ARGV[place_of(job)], key, scope, period, can_refuse and rejects }
  end
  return asking
end

-- ARGV from `at` on: jobs, each content once; what settlements carry, packed: the number of the answer, id, claim,
-- delivery, writes, the numbers of jobs, the slots it leaves, the unique keys of its jobs (number of the job, key,
-- scope, period, whether to refuse the call), the state in which it leaves its own job, whether that job keeps its turn
-- in the slots, and the number, policy and parents of its jobs with parents; then the settlements. Returns the jobs
-- still to be compared (or the job whose parent is unknown), the answers, and the unique key that refuses the call,
-- with the job that has it. If there are no answers, nothing was written.
local function settle_and_carry(at, crash_limit)
  local _, place_of, compared, next_at = read_jobs(at)
  local carriers = cmsgpack.unpack(ARGV[next_at])
  local clashes, jobs, by_id, asking, ends, with_parents = {}, {}, {}, {}, {}, {}
  for _, carrier in ipairs(carriers) do
    local _, id, token, delivery, written, numbers, _, wanted, state, _, parents = unpack(carrier)
    -- A settlement whose lease no longer holds will be refused, and its jobs with it.
    local is_held = held_until(token, state_field(id), delivery)
    for _, job in ipairs(is_held and numbers or {}) do
      local place = place_of(job)
      local other = by_id[ARGV[place]]
      if not other then
        by_id[ARGV[place]] = job
        jobs[#jobs + 1] = job
      elseif other ~= job then
        clashes[#clashes + 1] = { job, '', false, ARGV[place_of(other) + 4] }
      end
    end
    for _, one in ipairs(is_held and parents or {}) do
      with_parents[#with_parents + 1] = one
    end
    if is_held and wanted then
      ends[id] = state
      for _, one in ipairs(wanted) do
        asking[#asking + 1] = one
      end
    end
    check_keys(written)
  end
  local open, known, free = look_up(jobs, place_of, compared)
  if #clashes > 0 or #open > 0 then
    return #clashes > 0 and clashes or open
  end
  local after, stored = by_job(with_parents), jobs
  if #asking > 0 then
    local duplicates, conflict = find_duplicates(asking_for(asking, place_of, true), ends)
    if not duplicates then
      return open, false, conflict
    end
    stored = without(duplicates, jobs, place_of)
  end
  local orphan = find_orphan(stored, place_of, known, after)
  if orphan then
    return { orphan }
  end
  local number = reserve(#jobs)
  local answers, writes, new = settle(next_at + 1, crash_limit), {}, {}
  local freed, reserved, applied = {}, {}, {}
  for _, carrier in ipairs(carriers) do
    local place, id, _, _, written, numbers, leaves, wanted, _, keeps_turn = unpack(carrier)
    if string.sub(answers, place, place) == APPLIED then
      for _, write in ipairs(written) do
        writes[#writes + 1] = write
      end
      for _, job in ipairs(numbers) do
        new[#new + 1] = job
      end
      for _, name in ipairs(leaves or {}) do
        table.insert(keeps_turn and reserved or freed, { name, id })
      end
      for _, one in ipairs(wanted or {}) do
        applied[#applied + 1] = one
      end
    end
  end
  if #freed + #reserved > 0 then
    locked.leave(freed, reserved)
  end
  local _, cells = plan(writes)
  store(cells)
  if #applied > 0 then
    -- Checked again now that the jobs are settled: a job may enqueue the next one with its own key.
    local duplicates, taken = find_duplicates(asking_for(applied, place_of, false))
    uniques.store(taken)
    new = without(duplicates, new, place_of)
  end
  connect(insert(new, place_of, known, free, number, after))
  resolve_noted()
  return open, answers
end
