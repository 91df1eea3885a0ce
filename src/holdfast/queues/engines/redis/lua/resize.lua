-- Change the sizes of slots, and write cells. ARGV: writes, packed; sizes, packed: name, size, for how long the slot
-- admits no job. Returns the version of each write, or nothing if a condition does not hold; then nothing was changed.
local versions, cells = plan(cmsgpack.unpack(ARGV[1]))
if not versions then
  return false
end
locked.resize(cmsgpack.unpack(ARGV[2]))
store(cells)
return versions
