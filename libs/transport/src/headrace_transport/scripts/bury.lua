#!lua flags=allow-oom
-- Ends a request as an error and keeps it in the dead letters.
--
-- prelude common
-- A  1 engine  2 id  3 attempt  4 why  5 finish reason  6 usage
-- Returns 1 when the request was the engine's, else 0
local engine, id, attempt = A[1], A[2], A[3]
if not is_of(lease_of(id), engine, attempt) then return 0 end
local st = read(id, 'tenant', 'band', 'key', 'n', 'gateway', 'entry', 'delivered', 'crashes')
drop_lease(id, engine)
if not st then return 0 end
local record = record_of(id, st)
redis.call('XADD', K.dlq, 'MAXLEN', '~', 1000, '*', 'reason', A[4], 'tenant', st.tenant,
  'band', st.band, 'id', id, 'crashes', st.crashes, 'record', string.sub(record, 1, 65536))
redis.call('PEXPIRE', K.dlq, DLQ_MS)
end_request(id, st, A[5], A[6])
return 1
