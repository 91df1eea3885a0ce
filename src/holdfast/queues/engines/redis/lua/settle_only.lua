-- ARGV: limit of crashes, settlements.
return settle(2, ARGV[1])
