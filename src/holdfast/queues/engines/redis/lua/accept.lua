-- Store all of these jobs and apply all writes, or nothing. ARGV: jobs, packed writes if there are any. Returns the
-- jobs still to be compared; if there are none, also whether the conditions of all writes hold.
local count, place_of, compared, at = read_jobs(1)
local jobs = up_to(count)
local open, known, free = look_up(jobs, place_of, compared)
if #open > 0 then
  return { open }
end
local versions, cells = plan(ARGV[at] and cmsgpack.unpack(ARGV[at]) or {})
if not versions then
  return { open, 0 }
end
insert(jobs, place_of, known, free, reserve(#jobs))
store(cells)
return { open, 1 }
