-- Returns how many notes were read and how many edges were changed, and the ids of dead-lettered jobs.
local read, changed = unpack(resolve())
return { read, changed, dead_lettered }
