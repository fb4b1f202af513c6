//! The summary of a lock, in the field `hold` of its hash: see `lua/README.md`, "Keys".

use std::fmt;

use crate::resp::Resp;

/// The fields of the line. Times are in ms, by the server's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockSummary {
    /// 0 after a release.
    pub until: u64,
    pub lease: u64,
    pub pushed: bool,
    /// A request may be queued.
    pub has_waiters: bool,
    /// `1`, or `+` for more.
    pub holds: String,
    pub fence: u64,
    pub request: String,
}

impl LockSummary {
    /// The command that returns the summary of the lock with this key.
    pub fn command(key: &str) -> [&str; 3] {
        ["HGET", key, "hold"]
    }

    /// Whether a request holds the lock, or did until its lease ran out.
    pub fn is_held(&self) -> bool {
        self.until > 0
    }

    /// Parses the reply to that command. If there is no such lock, the result is all zeros.
    #[track_caller]
    pub fn of(reply: &Resp) -> LockSummary {
        if *reply == Resp::Nil {
            return LockSummary::default();
        }
        let words: Vec<_> = reply.text().split(' ').collect();
        let [until, lease, pushed, has_waiters, holds, fence, request] = words[..] else {
            panic!("no summary of a lock: {reply:?}");
        };
        LockSummary {
            until: until.parse().unwrap(),
            lease: lease.parse().unwrap(),
            pushed: pushed == "1",
            has_waiters: has_waiters == "1",
            holds: holds.to_owned(),
            fence: fence.parse().unwrap(),
            request: request.to_owned(),
        }
    }
}

impl fmt::Display for LockSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockSummary {
            until,
            lease,
            pushed,
            has_waiters,
            holds,
            fence,
            request,
        } = self;
        let (pushed, has_waiters) = (u8::from(*pushed), u8::from(*has_waiters));
        write!(
            f,
            "{until:013} {lease:010} {pushed} {has_waiters} {holds} {fence:016} {request}"
        )
    }
}
