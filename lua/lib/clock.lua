-- The server's clock, read once per script: before 7.2 it goes on while a script runs. Tests put another in its
-- place. No client's clock ever decides anything here.
--
-- Returns the time in µs as a string of 16 digits, and in ms as a number.
local function server_clock()
  local time = redis.call('TIME')
  local us = time[2]
  if #us < 6 then
    us = string.sub('00000' .. us, -6)
  end
  return time[1] .. us, time[1] * 1000 + (us - us % 1000) / 1000
end
