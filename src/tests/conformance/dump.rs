//! Prints all data of a lock as the rules hold it, in the form in which [`DUMP`] prints the server's data.

use std::collections::BTreeSet;

use crate::protocol::rules::lock::Lock;
use crate::protocol::rules::permits::Permits;
use crate::protocol::rules::{Absent, Queue, Spin};

/// Returns the data of three keys as texts, with hashes in the order of their fields, and then the time to
/// live of each key in ms.
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

local last = redis.call('TYPE', KEYS[3]).ok == 'zset' and sorted_set or hash
local dump = {hash(KEYS[1]), sorted_set(KEYS[2]), last(KEYS[3])}
for _, key in ipairs(KEYS) do
  dump[#dump + 1] = redis.call('PTTL', key)
end
return dump
";

/// The lock's hash, its queue, and its spin lock, or the timers of permits.
pub(super) type Data = [String; 3];

pub(super) fn data(lock: Option<&Lock>, mark: &str, spin: Option<&Spin>) -> Data {
    [
        lock.map(|lock| hash(lock, mark)).unwrap_or_default(),
        lock.map(|lock| queue(&lock.queue)).unwrap_or_default(),
        spin.map(|spin| format!("{}={}, request={}", spin.owner, spin.count, spin.request.simple()))
            .unwrap_or_default(),
    ]
}

/// The hash of permits, their queue, and their timers.
pub(super) fn of_permits(permits: &Permits) -> Data {
    let holds = permits.holds.iter().map(|(request, hold)| {
        let (deadline, lease, pushed) = (hold.deadline, hold.lease, u8::from(hold.pushed));
        let (fence, weight) = (hold.fence, hold.weight);
        let slot = hold.slot.map_or("-".to_owned(), |slot| slot.to_string());
        format!("h:{request}={deadline} {lease:010} {pushed} {fence} {weight:05} {slot}")
    });
    let (seen, used, fence, taken_until) = (permits.seen, permits.used, permits.fence, permits.taken_until);
    let taken: BTreeSet<_> = permits.holds.values().filter_map(|hold| hold.slot).collect();
    let slots = 0..taken.last().map_or(0, |last| last + 1);
    let slots: String = slots
        .map(|slot| if taken.contains(&slot) { '1' } else { '0' })
        .collect();
    let absent = absent(&permits.absent);
    let has_absent = u8::from(absent.is_some());
    let header = format!("permits={seen} {used:05} {fence} {taken_until:013} {has_absent} {slots}");
    let header = (fence > 0).then_some(header);
    let overtaken = permits.overtaken.as_ref();
    let overtaken = overtaken.map(|(request, permits)| format!("overtaken={permits} {request}"));
    [
        sorted(holds.chain(header).chain(overtaken).chain(absent)),
        queue(&permits.queue),
        queue(&permits.timers),
    ]
}

fn hash(lock: &Lock, mark: &str) -> String {
    let Some(holder) = &lock.written else {
        return String::new();
    };
    let (fence, absent) = (holder.fence, absent(&holder.absent));
    if holder.holds.is_empty() {
        return sorted(
            absent
                .into_iter()
                .chain([format!("hold={mark}{RELEASED} {fence}")]),
        );
    }
    let request = holder.request.as_ref().expect("of a hold");
    let (lease, pushed) = (holder.holds[request].lease, u8::from(holder.pushed));
    let several = holder.holds.len() > 1;
    let holds = if several { '+' } else { '1' };
    let until = holder.deadline();
    let summary = format!("hold={mark}{until} {lease:010} {pushed} {holds} {fence} {request}");
    let holds = holder.holds.iter().filter(|_| several);
    let holds = holds.map(|(request, hold)| format!("h:{request}={} {:010}", hold.deadline, hold.lease));
    sorted(holds.chain([summary]).chain(absent))
}

fn absent(absent: &Absent) -> Option<String> {
    let clients: String = absent.iter().map(|client| format!("{client} ")).collect();
    (!clients.is_empty()).then(|| format!("absent={clients}"))
}

/// The deadline of a released lock.
const RELEASED: &str = "0000000000000";

/// Whether the summary rules out that others wait. The rules do not need to keep that.
pub(super) fn rules_out_waiters(fields: &str) -> bool {
    let summary = fields.split(", ").find(|field| field.starts_with("hold="));
    summary.is_some_and(|summary| summary.trim_start_matches("hold=b ").split(' ').nth(3) == Some("0"))
}

/// Sorts the fields of a hash as [`DUMP`] prints them, without those that the rules do not need to keep. Of a
/// released lock only the fence stays, since the rest of its summary is left over from the last hold.
pub(super) fn ordered(fields: &str) -> String {
    sorted(counted(fields).map(shortened))
}

/// Sorts the fields of permits as [`DUMP`] prints them.
pub(super) fn ordered_permits(fields: &str) -> String {
    sorted(counted(fields))
}

/// The fields that count. While nobody is absent, the field of those who are is left over from before.
fn counted(fields: &str) -> impl Iterator<Item = &str> {
    let fields: Vec<_> = fields.split(", ").collect();
    let has_absent = fields.iter().any(|field| has_absent(field));
    let counts = move |field: &&str| !field.starts_with("absent=") || has_absent && *field != "absent=";
    fields.into_iter().filter(counts)
}

/// Whether this field is the summary of a lock, or the header of permits, and says that clients are absent.
fn has_absent(field: &str) -> bool {
    let words: Vec<_> = field.trim_start_matches("hold=b ").split(' ').collect();
    match words[0].split_once('=').map_or(words[0], |(name, _)| name) {
        "permits" => words.get(4) == Some(&"1"),
        "absent" => false,
        _ => words.get(3) == Some(&"2"),
    }
}

pub(super) fn sorted(fields: impl Iterator<Item: AsRef<str>>) -> String {
    let mut fields: Vec<_> = fields.map(|field| field.as_ref().to_owned()).collect();
    fields.sort_unstable();
    fields.join(", ")
}

fn shortened(field: &str) -> String {
    if field.starts_with("absent=") {
        return field.to_owned();
    }
    let words: Vec<_> = field.split(' ').collect();
    match words[..] {
        [until, _, _, _, _, fence, _] if until.strip_prefix("hold=") == Some(RELEASED) => {
            format!("{until} {fence}")
        }
        ["hold=b", RELEASED, _, _, _, _, fence, _] => format!("hold=b {RELEASED} {fence}"),
        [ref before @ .., pushed, _has_waiters, holds, fence, request] => {
            format!("{} {pushed} {holds} {fence} {request}", before.join(" "))
        }
        _ => field.to_owned(),
    }
}

fn queue(queue: &Queue) -> String {
    let order = queue.order.iter();
    order
        .map(|(ticket, request)| format!("{request} {ticket}"))
        .collect::<Vec<_>>()
        .join(" ")
}
