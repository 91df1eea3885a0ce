-- Cells of shared state. Each is a field in the hash of its kind: version, space, expiry (or nothing), space, value. A
-- dropped cell expires at once and stays until it is swept, so that the versions of its key keep growing.

-- Split a stored cell into version, expiry (if any) and value; nothing if there is no cell.
local function read_cell(stored)
  if not stored then
    return nil
  end
  local version, expires, place = string.match(stored, '^(%d+) (%d*) ()')
  if not version then
    return nil
  end
  return tonumber(version), tonumber(expires), string.sub(stored, place)
end

local function is_live(expires)
  return not expires or expires > now
end

-- Check the types of all keys that these writes change. A script that fails is not rolled back, so it has to fail
-- before its first write; it runs again after the repair.
local checked = {}
local function check_keys(writes)
  for _, write in ipairs(writes) do
    local kind = write[1]
    if not checked[kind] then
      call('HLEN', base .. 'cells:' .. kind)
      call('ZCARD', base .. 'keys:' .. kind)
      call('ZCARD', base .. 'expiries')
      checked[kind] = true
    end
  end
end

-- The outcome of writes (kind, key, value or nothing to drop it, time to live, expected version): the new version of
-- each, and the cells by name. Returns nothing if a condition does not hold. Nothing is written.
local function plan(writes)
  check_keys(writes)
  local versions, cells = {}, {}
  for number, write in ipairs(writes) do
    local kind, key, value, ttl, wanted = unpack(write, 1, 5)
    local name = kind .. ' ' .. key
    local cell = cells[name]
    if not cell then
      local version, expires = read_cell(call('HGET', base .. 'cells:' .. kind, key))
      cell = { kind = kind, key = key, version = version, expires = expires, is_new = not version }
      cells[name] = cell
    end
    local current = cell.version and is_live(cell.expires) and cell.version or 0
    if wanted and wanted ~= current then
      return nil
    end
    versions[number] = 0
    if value or cell.version then
      cell.version = math.max((cell.version or 0) + 1, now)
      cell.expires = not value and now or ttl and now + ttl
      cell.value = value or ''
      versions[number] = cell.version
    end
  end
  return versions, cells
end

-- Store what was planned. A cell may be swept when it has expired and its version is below the clock, because then
-- the next version of its key is greater.
local function store(cells)
  for name, cell in pairs(cells) do
    if cell.value then
      local expires = cell.expires and digits(cell.expires) or ''
      call('HSET', base .. 'cells:' .. cell.kind, cell.key, digits(cell.version) .. ' ' .. expires .. ' ' .. cell.value)
      if cell.is_new then
        call('ZADD', base .. 'keys:' .. cell.kind, 0, cell.key)
      end
      if cell.expires then
        call('ZADD', base .. 'expiries', digits(math.max(cell.expires, cell.version + 1)), name)
      elseif not cell.is_new then
        call('ZREM', base .. 'expiries', name)
      end
    end
  end
end
