-- ARGV: writes, packed. Returns the version of each, or nothing if a condition does not hold.
local versions, cells = plan(cmsgpack.unpack(ARGV[1]))
if not versions then
  return false
end
local has_new = false
for _, cell in pairs(cells) do
  has_new = has_new or cell.is_new and cell.value
end
-- A full server accepts no new cells (see room.lua); existing ones, such as heartbeats, may still change.
if not has_new then
  call('UNLINK', base .. 'room')
end
store(cells)
return versions
