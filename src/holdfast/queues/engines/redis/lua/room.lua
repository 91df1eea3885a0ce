-- A script can be refused for want of memory only at its first write, and not if that one is of a kind that frees some.
-- A full server takes no new jobs; but all that helps to finish the old ones must get through to it.
call('UNLINK', base .. 'room')
