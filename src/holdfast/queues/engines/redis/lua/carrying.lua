-- Settlements that carry writes and jobs: a settlement and what it carries are applied together, or neither is. A
-- script that fails is not rolled back, so everything that can be refused or can fail comes before the first
-- settlement.

-- ARGV from `at` on: jobs, each content once; what settlements carry, packed: the number of the answer, id, claim,
-- delivery, writes, and the numbers of jobs; then the settlements. Returns the jobs still to be compared (if there
-- are any, nothing was written), and the answers.
local function settle_and_carry(at, crash_limit)
  local _, place_of, compared, next_at = read_jobs(at)
  local carriers = cmsgpack.unpack(ARGV[next_at])
  local clashes, jobs, by_id = {}, {}, {}
  for _, carrier in ipairs(carriers) do
    local _, id, token, delivery, written, numbers = unpack(carrier)
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
    check_keys(written)
  end
  local open, known, free = look_up(jobs, place_of, compared)
  if #clashes > 0 or #open > 0 then
    return #clashes > 0 and clashes or open
  end
  local number = reserve(#jobs)
  local answers, writes, new = settle(next_at + 1, crash_limit), {}, {}
  for _, carrier in ipairs(carriers) do
    local place, _, _, _, written, numbers = unpack(carrier)
    if string.sub(answers, place, place) == APPLIED then
      for _, write in ipairs(written) do
        writes[#writes + 1] = write
      end
      for _, job in ipairs(numbers) do
        new[#new + 1] = job
      end
    end
  end
  local _, cells = plan(writes)
  store(cells)
  insert(new, place_of, known, free, number)
  return open, answers
end
