-- Store all of these jobs and apply all writes, or nothing. ARGV: jobs; packed, if there are any: writes, and the
-- number, policy and parents of jobs with parents. Returns the jobs still to be compared, or the job whose parent is
-- unknown; if there are none, also whether the conditions of all writes hold.
local count, place_of, compared, at = read_jobs(1)
local jobs = up_to(count)
local open, known, free = look_up(jobs, place_of, compared)
if #open > 0 then
  return { open }
end
local after = by_job(unpacked(at + 1))
local orphan = find_orphan(jobs, place_of, known, after)
if orphan then
  return { { orphan } }
end
local versions, cells = plan(unpacked(at))
if not versions then
  return { open, 0 }
end
connect(insert(jobs, place_of, known, free, reserve(#jobs), after))
store(cells)
resolve_noted()
return { open, 1 }
