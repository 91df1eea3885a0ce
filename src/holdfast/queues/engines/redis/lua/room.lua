-- A server refuses a script for lack of memory only at its first write, and never if that write is a command that frees
-- memory. So a full server accepts no new jobs, but every script that helps to finish the old ones begins with this.
call('UNLINK', base .. 'room')
