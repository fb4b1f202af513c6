//! All data of a lock as text: what the rules keep, in the form in which [`DUMP`] tells what the server keeps.

use std::collections::BTreeSet;

use super::super::lock::Lock;
use super::super::rules::Spin;
use crate::key::{Owner, Request};

/// Returns the data of four keys as texts, hashes by field, and then for how long the server keeps each, in ms.
pub(super) const DUMP: &str = "
local function hash(key)
  local all, lines = redis.call('HGETALL', key), {}
  for i = 1, #all, 2 do
    lines[#lines + 1] = all[i] .. '=' .. all[i + 1]
  end
  return table.concat(lines, ', ')
end

local function sorted_set(key)
  return table.concat(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), ' ')
end

local dump = {hash(KEYS[1]), sorted_set(KEYS[2]), sorted_set(KEYS[3]), hash(KEYS[4])}
for _, key in ipairs(KEYS) do
  dump[#dump + 1] = redis.call('PTTL', key)
end
return dump
";

/// The hash of the lock, its queue, its clients, and its spin lock.
pub(super) type Data = [String; 4];

pub(super) fn data(lock: Option<&Lock>, format: &str, spin: Option<&Spin>) -> Data {
    [
        lock.map(|lock| hash(lock, format)).unwrap_or_default(),
        lock.map(queue).unwrap_or_default(),
        lock.map(clients).unwrap_or_default(),
        spin.map(|spin| format!("{}={}, request={}", spin.owner, spin.count, spin.request.simple()))
            .unwrap_or_default(),
    ]
}

fn hash(lock: &Lock, format: &str) -> String {
    let Some(holder) = &lock.written else {
        return String::new();
    };
    if holder.holds.is_empty() {
        return format!("fence={}, until=0, v={format}", holder.fence);
    }
    let request = holder.request.as_ref();
    let first = request.and_then(|request| holder.holds.get(request));
    let mut fields = BTreeSet::from([
        format!("v={format}"),
        format!("fence={}", holder.fence),
        format!("owner={}", holder.owner.as_ref().map_or("", Owner::as_str)),
        format!("request={}", request.map_or("", Request::as_str)),
        format!("until={}", holder.deadline()),
        format!("lease={}", first.map_or(0, |hold| hold.lease)),
        format!("pushed={}", u8::from(holder.pushed)),
        format!("holds={}", holder.holds.len()),
    ]);
    if holder.holds.len() > 1 {
        let holds = holder.holds.iter();
        fields.extend(holds.map(|(request, hold)| format!("h:{request}={} {}", hold.deadline, hold.lease)));
    }
    fields.into_iter().collect::<Vec<_>>().join(", ")
}

/// What the fields of a free lock say beside these is left from its last hold.
const LEFT: [&str; 5] = ["owner=", "request=", "lease=", "pushed=", "holds="];

/// The fields of a hash as [`DUMP`] tells them, in order, without those that don't count.
pub(super) fn ordered(fields: &str) -> String {
    let mut ordered: BTreeSet<_> = fields.split(", ").collect();
    if ordered.contains("until=0") {
        ordered.retain(|field| !LEFT.iter().any(|left| field.starts_with(left)));
    }
    ordered.into_iter().collect::<Vec<_>>().join(", ")
}

fn queue(lock: &Lock) -> String {
    let order = lock.queue.order.iter();
    order
        .map(|(ticket, request)| format!("{request} {ticket}"))
        .collect::<Vec<_>>()
        .join(" ")
}

fn clients(lock: &Lock) -> String {
    let clients = lock.clients.iter();
    let order: BTreeSet<_> = clients.map(|(client, until)| (until, client)).collect();
    let texts = order
        .into_iter()
        .map(|(until, client)| format!("{client} {until}"));
    texts.collect::<Vec<_>>().join(" ")
}
