-- Tells the holder's client that somebody wants the lock, if that client may retain it without using it. The
-- client is told whether or not it listens: at worst, the lock comes back when its retention is over.
local function tell_wanted(summary, channel_prefix)
  if string.sub(summary, MARK, MARK) == RETAINED then
    local pubsub_mode = string.sub(channel_prefix, PUBSUB_MODE, PUBSUB_MODE)
    local sharded = pubsub_mode == SHARDED or pubsub_mode == MIGRATING
    local channel = string.sub(channel_prefix, PREFIX) .. string.sub(summary, REQUEST, REQUEST_CLIENT_END)
    local push = WANTED_PUSH .. ' ' .. string.sub(summary, FENCE, FENCE_END)
    redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, push)
  end
end

