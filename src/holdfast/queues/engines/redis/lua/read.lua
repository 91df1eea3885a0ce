-- Live cells of a kind, in the order of their keys. ARGV: kind, the key after which to continue, how many to read; then
-- the keys, if only these are wanted. Returns the time, the cells (key, value, version, expiry), and the last key it
-- read, if there may be more.
local kind, limit = ARGV[1], tonumber(ARGV[3])
local keys = {}
if #ARGV == 3 then
  keys = call('ZRANGEBYLEX', base .. 'keys:' .. kind, '(' .. ARGV[2], '+', 'LIMIT', 0, limit)
end
for place = 4, #ARGV do
  keys[#keys + 1] = ARGV[place]
end
local rows = {}
for place, stored in ipairs(each('HMGET', base .. 'cells:' .. kind, keys)) do
  local version, expires, value = read_cell(stored)
  if version and is_live(expires) then
    rows[#rows + 1] = { keys[place], value, version, expires or false }
  end
end
return { now, rows, #keys == limit and keys[limit] }
