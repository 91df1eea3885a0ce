-- ARGV: the version of the layout this program knows. Answers the one that is there; the first to come says which.
local version = call('GET', base .. 'schema')
if not version then
  call('SET', base .. 'schema', ARGV[1])
end
return version or ARGV[1]
