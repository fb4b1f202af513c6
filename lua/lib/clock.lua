-- The server's clock, read once per script: before 7.2 it goes on while a script runs. Tests put another in its
-- place. No client's clock ever decides anything here.
--
-- Returns the time in µs as a string of 16 digits, and in ms as a number.
local function server_clock()
  local time = redis.call('TIME')
  local us = string.sub('000000' .. time[2], -6)
  return time[1] .. us, tonumber(time[1] .. string.sub(us, 1, 3))
end
