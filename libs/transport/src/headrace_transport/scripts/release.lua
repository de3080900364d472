#!lua flags=allow-oom
-- Hands requests back, to be taken before anything that has not begun. No crash is counted.
--
-- prelude common
-- A  1 engine  2 crashes that make a suspect  3 crashes that end it  then pairs of id, attempt
-- Returns how many were the engine's
local now, released = now_ms(), 0
for i = 4, #A, 2 do
  local id = A[i]
  local lease = lease_of(id)
  if is_of(lease, A[1], A[i + 1]) then
    drop_lease(id, lease.owner)
    local st = read(id, 'deadline', 'crashes')
    if st then
      st.suspect_at, st.dead_at = A[2], A[3]
      orphan(id, st, now)
    end
    released = released + 1
    ring()
  end
end
return released
