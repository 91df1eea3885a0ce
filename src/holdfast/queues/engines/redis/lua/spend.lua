-- Take tokens from buckets (GCRA). ARGV, packed, for each spend: bucket, tokens, tokens per second, burst, whether they
-- are reserved. Returns for each how many tokens were granted, and how many microseconds to wait.
local buckets, answers = {}, {}
for number, spend in ipairs(cmsgpack.unpack(ARGV[1])) do
  local bucket, tokens, per_s, burst, is_reserved = unpack(spend)
  -- Whole microseconds, rounded up, so that no rate is exceeded.
  local each_us = math.ceil(1000000 / per_s)
  local full_at = math.max(buckets[bucket] or tonumber(call('ZSCORE', base .. 'buckets', bucket) or 0), now)
  local granted = tokens
  if not is_reserved and tokens >= 0 then
    local free = math.floor((burst * each_us - (full_at - now)) / each_us)
    granted = math.max(0, math.min(tokens, free))
  end
  -- A refund cannot overfill a bucket.
  full_at = math.max(now, full_at + granted * each_us)
  local wait = full_at - now + (is_reserved and 0 or each_us) - burst * each_us
  buckets[bucket] = full_at
  answers[number] = { granted, string.format('%.17g', math.max(0, wait)) }
end
local scores = {}
for bucket, full_at in pairs(buckets) do
  scores[#scores + 1], scores[#scores + 2] = digits(full_at), bucket
end
write('ZADD', 'buckets', scores)
return answers
