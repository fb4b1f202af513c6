//! Properties of everything that is read from the network, whatever its text. The fuzz targets in `fuzz/`
//! call these functions, and a short form runs with the tests.
//!
//! This module is no part of the interface: it exists only under `--cfg fuzzing` and in tests.

#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::protocol::Operation;
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::Keys;
use crate::protocol::label::Label;
use crate::protocol::script::ReplyError;
use crate::protocol::{
    Acquire, Acquired, Contended, GetLabel, Grant, Inspect, Inspected, InspectedHold, Look, Looked, Mode,
    Push, Release, ReleaseOutcome, ReleaseWhat, Released, Renew, Renewed, SpinAcquire, SpinAcquired,
    SpinRelease, SpinReleased, Withdraw, Withdrawn,
};
#[cfg(feature = "redis")]
use crate::servers::redis::resp::{Frames, Malformed};
use crate::time::clock::LocalTime;
use crate::time::clock_offset::ClockOffset;
use crate::time::clock_offset::Sample;
use crate::time::server_time::{ServerTime, Ticket};
use crate::types::fence::Fence;
use crate::types::owner::Owner;

/// The request that all accepted replies answer.
const OWN: &str = "0123456789abcdef0123456789abcdef:0000005000:7:";
const SPAN: Duration = Duration::from_secs(30);

/// Checks a message on an unlock channel. If it parses, writing and parsing it again gives the same message.
pub fn push(message: &str) {
    if let Some(push) = Push::parse(message) {
        if let Push::Granted(grants) = &push {
            grants.iter().for_each(|grant| request(grant.request.as_str()));
        }
        assert_eq!(Push::parse(&push.write()), Some(push));
    }
}

/// Checks what a server sends. Whatever it is, it is read alike in whatever parts it comes.
#[cfg(feature = "redis")]
pub fn frames(bytes: &[u8]) {
    let whole = read_in_parts(bytes, bytes.len().max(1));
    for length in [1, 2, 7] {
        assert_eq!(read_in_parts(bytes, length), whole, "{length}");
    }
}

/// What is read of these bytes if they come in parts of this length, and why it ends.
#[cfg(feature = "redis")]
pub(crate) fn read_in_parts(bytes: &[u8], length: usize) -> (Vec<String>, Option<Malformed>) {
    let (mut frames, mut read) = (Frames::default(), Vec::new());
    for mut part in bytes.chunks(length) {
        while !part.is_empty() {
            let space = frames.space();
            let fits = part.len().min(space.len());
            space[..fits].copy_from_slice(&part[..fits]);
            frames.filled(fits);
            part = &part[fits..];
            loop {
                match frames.next() {
                    // The order of a map is that of its hashes.
                    Ok(Some(frame)) => read.push(format!("{frame:?}").len().to_string()),
                    Ok(None) => break,
                    Err(why) => return (read, Some(why)),
                }
            }
        }
    }
    (read, None)
}

/// Checks a request id. If it parses, it has all its parts, and it is written as it was read.
pub fn request(text: &str) {
    let Some(request) = RequestId::from_wire(text) else {
        return;
    };
    assert_eq!(request.to_string(), text);
    let head = format!("{}:{:010}", request.client(), request.claim_window().as_millis());
    let rest = text.strip_prefix(&head).expect("client and claim window first");
    let (permits, number) = match rest[1..].split_at_checked(12) {
        Some((permits, number)) if permits.as_bytes()[5] == b'/' => (Some(permits), number),
        _ => (None, &rest[1..]),
    };
    let written = format!("{:05}/{:05}:", request.weight(), request.capacity());
    assert!(permits.is_none_or(|permits| permits == written));
    assert!(
        request.number() == 0
            || number
                .trim_start_matches(['+', '0'])
                .starts_with(&request.number().to_string())
    );
    assert_eq!(request.is_kept(), rest.starts_with('='));
    assert_eq!(request.is_owner(), request.owner() == text);
    assert!(text.ends_with(request.owner()));
}

/// Checks a reply. The text has the name of a script, then a line in which `=` stands for the request. A
/// reply that is accepted answers that request, is the same when it is written and read again, and gives no
/// deadline later than the server's. A reply to that request that cannot be read is not taken for one to
/// another call.
pub fn reply(text: &str) {
    let (script, line) = text.split_once('\n').unwrap_or_default();
    let line = &whole(line);
    let keys = Arc::new(Keys::new("fairlock", "a").expect("a good name"));
    let request = RequestId::from_wire(OWN).expect("a request");
    let owner = Owner::from_wire(OWN);
    match script {
        "acquire" => read_again(
            &Acquire {
                keys,
                request,
                mode: Mode::Poll,
                lease: SPAN,
                not_after: Arc::new(ServerTime::MAX),
                ticket: None,
                floor: None,
            },
            line,
            acquired,
        ),
        "release" => read_again(
            &Release {
                keys,
                request,
                what: ReleaseWhat::Force {
                    fence: Fence::new(1).expect("a fence"),
                    from: 0,
                },
                floor: None,
            },
            line,
            released,
        ),
        "withdraw" => read_again(
            &Withdraw {
                keys,
                requests: vec![request],
                floor: None,
            },
            line,
            withdrawn,
        ),
        "renew" => read_again(
            &Renew {
                keys,
                request,
                fence: Fence::new(1).expect("a fence"),
                lease: SPAN,
                cap: ServerTime::MAX,
                on_demand: false,
            },
            line,
            renewed,
        ),
        "look" => read_again(
            &Look {
                renew: Renew {
                    keys,
                    request,
                    fence: Fence::new(1).expect("a fence"),
                    lease: SPAN,
                    cap: ServerTime::MAX,
                    on_demand: false,
                },
                floor: Fence::new(2).expect("a fence"),
                ticket: Ticket(1),
            },
            line,
            looked,
        ),
        // What is read of permits does not tell their owners' requests, so it cannot be written again.
        "inspect" if line.starts_with("4 ") => {
            let _ = Inspect { keys, request }.read(line);
        }
        "inspect" => read_again(&Inspect { keys, request }, line, inspected),
        "spin_acquire" => read_again(
            &SpinAcquire {
                keys,
                owner,
                request: Uuid::nil(),
                lease: SPAN,
            },
            line,
            spin_acquired,
        ),
        "label" => read_again(
            &GetLabel {
                key: "fairlock:label:a".to_owned(),
                client: ClientId::from_wire(OWN),
            },
            line,
            label,
        ),
        "spin_release" => read_again(&SpinRelease { keys, owner }, line, spin_released),
        _ => {}
    }
}

/// Replaces each `=` in the line by the request.
fn whole(line: &str) -> String {
    let word = |word| if word == "=" { OWN } else { word };
    line.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The reply's status, its deadline, and the words after these.
type Written = (u64, u64, Vec<String>);

fn read_again<O: Operation>(operation: &O, line: &str, write: impl Fn(&O::Reply, ServerTime) -> Written)
where
    O::Reply: PartialEq + Debug,
{
    let is_own = line.split(' ').nth(1) == Some(OWN);
    let (now, reply) = match operation.read(line) {
        Ok(read) => read,
        Err(error) => {
            let is_of_another = matches!(error, ReplyError::Desynchronised(_));
            assert_eq!(is_of_another, !is_own, "{error:?}");
            return;
        }
    };
    assert!(is_own, "a reply to another request");
    let (status, deadline, rest) = write(&reply, now);
    let mut again = format!("{status} {OWN} {} {deadline}", now.ms());
    for word in rest {
        again.push(' ');
        again.push_str(&word);
    }
    assert_eq!(operation.read(&again), Ok((now, reply)));
    bounded(now, ServerTime::from_ms(deadline));
}

/// Checks that a deadline counted from the sending is never later here than on the server.
fn bounded(now: ServerTime, deadline: ServerTime) {
    let sent = LocalTime::ZERO.after(SPAN);
    let at = Sample {
        sent,
        received: sent.after(Duration::from_millis(1)),
        now,
    };
    let mut offsets = ClockOffset::default();
    offsets.record(at);
    let local = offsets.local(deadline, sent, SPAN).expect("a sample");
    assert!(local >= sent && local <= sent.after(deadline.since(now)));
    assert!(offsets.latest_us(local) >= Some(now.ms().saturating_mul(1000)));
}

fn flag(flag: bool) -> String {
    u8::from(flag).to_string()
}

fn acquired(reply: &Acquired, now: ServerTime) -> Written {
    match reply {
        Acquired::Granted { grant, was_queued } => {
            assert_eq!(grant.request.as_str(), OWN);
            (
                1,
                grant.deadline.ms(),
                vec![
                    grant.fence.get().to_string(),
                    flag(grant.pushed),
                    flag(*was_queued),
                ],
            )
        }
        Acquired::Contended(contended) => {
            let Contended {
                ttl,
                ticket,
                ahead,
                enqueued,
                own_grant,
            } = contended;
            let ttl = u64::try_from(ttl.as_millis()).expect("it was read from a u64");
            let mut rest = vec![
                ticket.unwrap_or(Ticket(0)).0.to_string(),
                ahead.to_string(),
                flag(*enqueued),
            ];
            rest.extend(own_grant.as_ref().map_or_else(|| vec!["-".to_owned()], grant));
            (if ticket.is_some() { 2 } else { 3 }, now.ms() + ttl, rest)
        }
        Acquired::ExpiredCall => (4, 0, vec![]),
        Acquired::Incomplete => (5, 0, vec![]),
        Acquired::Full => (7, 0, vec![]),
    }
}

fn grant(grant: &Grant) -> Vec<String> {
    request(grant.request.as_str());
    vec![
        grant.request.to_string(),
        grant.fence.get().to_string(),
        grant.deadline.ms().to_string(),
        flag(grant.pushed),
    ]
}

fn released(reply: &Released, _: ServerTime) -> Written {
    let status = match reply.outcome {
        ReleaseOutcome::Released => 1,
        ReleaseOutcome::OneFewer => 2,
        ReleaseOutcome::Expired => 3,
        ReleaseOutcome::Taken => 4,
    };
    (status, 0, vec![flag(reply.denied), flag(reply.more)])
}

fn withdrawn(reply: &Withdrawn, _: ServerTime) -> Written {
    (1, 0, vec![flag(false), flag(reply.more)])
}

fn renewed(reply: &Renewed, _: ServerTime) -> Written {
    match reply {
        Renewed::Until(deadline) => (1, deadline.ms(), vec![]),
        Renewed::Expired => (2, 0, vec![]),
        Renewed::Taken => (3, 0, vec![]),
    }
}

fn looked(reply: &Looked, now: ServerTime) -> Written {
    let (status, deadline, mut rest) = renewed(&reply.renewed, now);
    if status == 1 {
        rest = vec![reply.fence.get().to_string(), flag(reply.earlier)];
    }
    (status, deadline, rest)
}

fn inspected(reply: &Inspected, _: ServerTime) -> Written {
    let first = reply.first.map_or(0, |ticket| ticket.0).to_string();
    match reply.holders.first() {
        Some(InspectedHold {
            owner,
            client,
            fence,
            holds,
            deadline,
            // The owner shows these.
            kept: _,
            retains: _,
            permits: _,
            of: _,
            slot: _,
        }) => {
            let rest = vec![
                fence.get().to_string(),
                owner.to_string(),
                holds.to_string(),
                reply.waiting.to_string(),
                client.to_string(),
                first,
            ];
            (1, deadline.ms(), rest)
        }
        None => {
            let nobody = vec![
                "0".to_owned(),
                "-".to_owned(),
                "0".to_owned(),
                reply.waiting.to_string(),
                "-".to_owned(),
                first,
            ];
            (2, 0, nobody)
        }
    }
}

fn label(reply: &Option<Label>, _: ServerTime) -> Written {
    match reply {
        Some(label) => (1, 0, vec![label.to_string()]),
        None => (2, 0, vec![]),
    }
}

fn spin_acquired(reply: &SpinAcquired, _: ServerTime) -> Written {
    match reply {
        SpinAcquired::Held(count) => (1, 0, vec![count.to_string()]),
        SpinAcquired::Busy => (2, 0, vec![]),
    }
}

fn spin_released(reply: &SpinReleased, _: ServerTime) -> Written {
    match reply {
        SpinReleased::Left(count) => (1, 0, vec![count.to_string()]),
        SpinReleased::NotHeld => (2, 0, vec![]),
    }
}
