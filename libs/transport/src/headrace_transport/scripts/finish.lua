#!lua flags=allow-oom
-- Ends a request that its engine has finished: last log entry, acknowledgement, lease, mark,
-- state, and the tenant's charge for what was generated. Doing it twice is doing it once.
--
-- prelude common
-- A  1 engine  2 id  3 attempt  4 log entry, or ''  5 reason  6 usage  7 generated tokens
-- Returns 1 when the request was the engine's, else 0
local engine, id, attempt = A[1], A[2], A[3]
local st = read(id, 'tenant', 'band', 'key', 'n', 'gateway', 'entry', 'delivered', 'owner', 'attempt')
if not st then return 0 end
if st.status == 'finished' then
  return (st.owner == engine and st.attempt == attempt) and 1 or 0
end
if not is_of(lease_of(id), engine, attempt) then return 0 end
if A[4] ~= '' then redis.pcall('XADD', log_key(id), '*', 'entry', A[4]) end
drop_lease(id, engine)
end_request(id, st, A[5], A[6])
charge(st.band, st.tenant, tonumber(A[7]))
return 1
