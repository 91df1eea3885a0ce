-- ARGV: crash limit, settlements. Returns the answers.
return settle(2, ARGV[1])
