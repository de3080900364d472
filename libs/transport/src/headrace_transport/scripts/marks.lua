#!lua flags=no-writes,allow-oom
-- Reads the marks of requests.
--
-- prelude common
-- A  ids
-- Returns {id, {marks}, ...} for those that have any
local found = {}
for _, id in ipairs(A) do
  local st = read(id, 'n')
  local marks = marks_of(id, st and tonumber(st.n) or 1)
  if #marks > 0 then
    found[#found + 1] = id
    found[#found + 1] = marks
  end
end
return found
