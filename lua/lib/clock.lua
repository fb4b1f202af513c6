-- The server's clock, read once per script: before 7.2 it goes on while a script runs. Tests put another in its
-- place. No client's clock ever decides anything here.
--
-- Returns the time in µs as a string of 16 digits, and in ms as one of 13: of one width, times compare as strings.
local function server_clock()
  local time = redis.call('TIME')
  local us = time[2]
  if #us < 6 then
    us = string.sub('00000' .. us, -6)
  end
  us = time[1] .. us
  return us, string.sub(us, 1, 13)
end
