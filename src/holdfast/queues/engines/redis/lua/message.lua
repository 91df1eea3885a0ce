-- ARGV: id. Returns the number of the record, and its message.
return { fields(base .. 'job:' .. ARGV[1], 'number')[1] or '', message_of(ARGV[1]) or '' }
