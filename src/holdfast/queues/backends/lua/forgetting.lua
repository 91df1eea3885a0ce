-- What is left of a job that is forgotten: nothing, or an id that is known by the digest of its content for a while.

local function remove(id, state, queue)
  call('UNLINK', base .. 'job:' .. id, base .. 'wire:' .. id, base .. 'told:' .. id)
  call('ZREM', base .. 'jobs', id)
  call('ZREM', base .. FINISHED[state] .. queue, id)
end

local function bury(id, state, queue, number, digest, known_until)
  remove(id, state, queue)
  call('HSET', base .. 'job:' .. id, 'state', FORGOTTEN, 'number', number, 'digest', digest,
    'known_until', known_until)
  call('ZADD', base .. 'stones', known_until, id)
end
