-- Store these jobs except those whose unique key another job has, and apply all writes, or nothing. ARGV: jobs; packed,
-- for each job with a unique key: its number, key, scope, period, and whether to refuse the call; packed, if there are
-- any: writes, and the number, policy and parents of jobs with parents. Returns the jobs still to be compared, or the
-- job whose parent is unknown; if there are none, also whether the conditions of all writes hold, and the number of
-- each job that was not stored, with the id of the job that has its key; if the call is refused, also the key and the
-- job that has it.
local count, place_of, compared, at = read_jobs(1)
local jobs = up_to(count)
local open, known, free = look_up(jobs, place_of, compared)
if #open > 0 then
  return { open }
end
local asking = cmsgpack.unpack(ARGV[at])
for _, one in ipairs(asking) do
  one[1] = ARGV[place_of(one[1])]
end
local duplicates, taken = find_duplicates(asking)
if not duplicates then
  return { open, 0, {}, taken }
end
local new, others = without(duplicates, jobs, place_of)
local after = by_job(unpacked(at + 2))
local orphan = find_orphan(new, place_of, known, after)
if orphan then
  return { { orphan } }
end
local versions, cells = plan(unpacked(at + 1))
if not versions then
  return { open, 0 }
end
local number = reserve(#new)
uniques.store(taken)
connect(insert(new, place_of, known, free, number, after))
store(cells)
resolve_noted()
return { open, 1, others }
