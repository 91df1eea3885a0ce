-- ARGV: id. Answers the number of the record, and its message.
local wire = try('GET', base .. 'wire:' .. ARGV[1])
return { fields(base .. 'job:' .. ARGV[1], 'number')[1] or '', type(wire) == 'string' and wire or '' }
