//! Executes the operations by the rules, which the scripts must follow.

use std::collections::BTreeSet;
use std::fmt::Debug;

use super::step::Trouble;
use crate::protocol::Push;
use crate::protocol::rules::{ByRules, Channels, Now, Rules, Run};
use crate::protocol::{
    Acquire, Acquired, ConnectionId, Inspect, Inspected, Look, Looked, Release, ReleaseOutcome, Released,
    Renew, Renewed, Shrink, SpinAcquire, SpinAcquired, SpinRelease, SpinReleased, Withdraw, Withdrawn,
};
use crate::time::server_time::ServerTime;

/// The publish/subscribe side of the model.
#[derive(Default)]
pub(super) struct PubSub {
    pub(super) subscribed: BTreeSet<String>,
    pub(super) messages: Vec<(String, String)>,
    /// If set, the caller may publish only on channels that end like this.
    pub(super) allowed: Option<String>,
    /// Whether the caller published where it may not.
    pub(super) denied: bool,
}

impl Channels for PubSub {
    fn subscribers(&self, channel: &str) -> usize {
        usize::from(self.subscribed.contains(channel))
    }

    fn publish(&mut self, channel: &str, message: &str) -> bool {
        if self.allowed.as_ref().is_some_and(|end| !channel.ends_with(end)) {
            // Nobody reports that.
            self.denied |= !matches!(Push::parse(message), Some(Push::Wanted(_)));
            return false;
        }
        if self.subscribed.contains(channel) {
            self.messages.push((channel.to_owned(), message.to_owned()));
        }
        true
    }
}

pub(super) trait Modelled: ByRules<Reply: PartialEq + Debug> {
    /// Whether the operation replies that the lock is written in a newer format.
    const KNOWS_FORMATS: bool = true;
    /// Whether a server that is out of memory must execute the operation.
    const FREES_MEMORY: bool = false;

    /// Executes the call by the rules.
    fn execute(&self, rules: &mut Rules, now: Now, pub_sub: &mut PubSub) -> Self::Reply {
        let not_after = self
            .stamp()
            .and_then(|stamp| stamp.written(ConnectionId::default()));
        let run = Run {
            now,
            not_after: not_after.unwrap_or(ServerTime::MAX),
            channels: pub_sub,
        };
        self.by_rules(rules, run)
    }

    /// The kind of a reply, as listed in [`KINDS`].
    fn kind(reply: &Self::Reply) -> &'static str;
}

impl Modelled for Acquire {
    fn kind(reply: &Acquired) -> &'static str {
        match reply {
            Acquired::Granted { grant, .. } if grant.pushed => "granted by an earlier push",
            Acquired::Granted { .. } => "granted",
            Acquired::Contended(contended) if contended.own_grant.is_some() => {
                "contended, own client's grant"
            }
            Acquired::Contended(contended) if contended.ticket.is_none() => "busy",
            Acquired::Contended(_) => "queued",
            Acquired::ExpiredCall => "expired call",
            Acquired::Incomplete => "an acquire, incomplete",
            Acquired::Full => "too many holds",
        }
    }
}

impl Modelled for Release {
    const FREES_MEMORY: bool = true;

    fn execute(&self, rules: &mut Rules, now: Now, pub_sub: &mut PubSub) -> Released {
        released(self, rules, now, pub_sub)
    }

    fn kind(reply: &Released) -> &'static str {
        match reply.outcome {
            _ if reply.denied => "a release, push denied",
            _ if reply.more => "a release, incomplete",
            ReleaseOutcome::Released => "released",
            ReleaseOutcome::OneFewer => "one hold fewer",
            ReleaseOutcome::Expired => "a release, expired",
            ReleaseOutcome::Taken => "a release, taken",
        }
    }
}

impl Modelled for Shrink {
    const FREES_MEMORY: bool = true;

    fn execute(&self, rules: &mut Rules, now: Now, pub_sub: &mut PubSub) -> Released {
        released(self, rules, now, pub_sub)
    }

    fn kind(reply: &Released) -> &'static str {
        Release::kind(reply)
    }
}

fn released(
    call: &impl ByRules<Reply = Released>,
    rules: &mut Rules,
    now: Now,
    pub_sub: &mut PubSub,
) -> Released {
    let run = Run {
        now,
        not_after: ServerTime::MAX,
        channels: pub_sub,
    };
    let released = call.by_rules(rules, run);
    Released {
        denied: pub_sub.denied,
        ..released
    }
}

impl Modelled for Withdraw {
    const FREES_MEMORY: bool = true;

    fn kind(reply: &Withdrawn) -> &'static str {
        match reply.more {
            true => "withdrawn, incomplete",
            false => "withdrawn",
        }
    }
}

impl Modelled for Renew {
    const FREES_MEMORY: bool = true;

    fn kind(reply: &Renewed) -> &'static str {
        match reply {
            Renewed::Until(_) => "renewed",
            Renewed::Expired => "a renewal, expired",
            Renewed::Taken => "a renewal, taken",
        }
    }
}

impl Modelled for Look {
    const FREES_MEMORY: bool = true;

    fn kind(reply: &Looked) -> &'static str {
        match reply.renewed {
            Renewed::Until(_) if reply.earlier => "a look, earlier request",
            Renewed::Until(_) => "a look",
            Renewed::Expired => "a look, expired",
            Renewed::Taken => "a look, taken",
        }
    }
}

impl Modelled for Inspect {
    const FREES_MEMORY: bool = true;

    fn kind(reply: &Inspected) -> &'static str {
        match reply.holders.first() {
            Some(holding) if holding.kept => "inspected, kept",
            Some(_) => "inspected, held",
            None => "inspected, free",
        }
    }
}

impl Modelled for SpinAcquire {
    const KNOWS_FORMATS: bool = false;

    fn kind(reply: &SpinAcquired) -> &'static str {
        match reply {
            SpinAcquired::Held(_) => "spin lock held",
            SpinAcquired::Busy => "spin lock busy",
        }
    }
}

impl Modelled for SpinRelease {
    const KNOWS_FORMATS: bool = false;
    const FREES_MEMORY: bool = true;

    fn kind(reply: &SpinReleased) -> &'static str {
        match reply {
            SpinReleased::Left(0) => "spin lock free",
            SpinReleased::Left(_) => "spin lock still held",
            SpinReleased::NotHeld => "spin lock not held",
        }
    }
}

impl Trouble {
    /// What kind of reply an error is. Panics if the trouble is no reason for it.
    pub(super) fn refused<O: Modelled>(self, error: &str) -> &'static str {
        match self {
            Trouble::Full if error.contains("OOM") && !O::FREES_MEMORY => "refused: out of memory",
            Trouble::ReadOnly if error.contains("NOREPLICAS") => "refused: no writes",
            _ => panic!("{self:?}: {error}"),
        }
    }
}

/// The kinds of replies that must occur in many runs, so that the comparison covers them all.
pub(super) const KINDS: [&str; 37] = [
    "a lock is wanted",
    "a client is absent",
    "granted by an earlier push",
    "granted",
    "contended, own client's grant",
    "busy",
    "queued",
    "expired call",
    "an acquire, incomplete",
    "a release, push denied",
    "a release, incomplete",
    "released",
    "one hold fewer",
    "a release, expired",
    "a release, taken",
    "withdrawn",
    "withdrawn, incomplete",
    "renewed",
    "a renewal, expired",
    "a renewal, taken",
    "a look, earlier request",
    "a look",
    "a look, expired",
    "a look, taken",
    "inspected, held",
    "inspected, kept",
    "inspected, free",
    "spin lock held",
    "spin lock busy",
    "spin lock free",
    "spin lock still held",
    "spin lock not held",
    "a push",
    "newer format",
    "clock behind",
    "refused: out of memory",
    "refused: no writes",
];
