-- ARGV: crash limit, settlements. Returns the answers.
local answers = settle(2, ARGV[1])
resolve_noted()
return answers
