-- ARGV: the version of the layout that this program knows. Returns the version on the server, which the first program
-- sets.
local version = call('GET', base .. 'schema')
if not version then
  call('SET', base .. 'schema', ARGV[1])
end
return version or ARGV[1]
