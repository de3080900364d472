#!lua flags=no-writes,allow-oom
-- Counts the queued requests whose deadline has not passed.
--
-- KEYS  1 queued
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
return redis.call('ZCOUNT', KEYS[1], '(' .. string.format('%.0f', now), '+inf')
