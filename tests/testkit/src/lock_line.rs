//! The line in which the server keeps a lock: see `lua/README.md`, "Keys".

use std::fmt;

use crate::resp::Resp;

/// The fields of the line. Times are in ms, by the server's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockLine {
    /// 0 after a release.
    pub until: u64,
    pub lease: u64,
    pub pushed: bool,
    /// A request may be queued.
    pub waited: bool,
    /// `1`, or `+` for more.
    pub holds: String,
    pub fence: u64,
    pub request: String,
}

impl LockLine {
    /// The command that returns the line of the lock with this key.
    pub fn command(key: &str) -> [&str; 3] {
        ["HGET", key, "hold"]
    }

    /// Parses the reply to that command. If there is no such lock, the result is all zeros.
    #[track_caller]
    pub fn of(reply: &Resp) -> LockLine {
        if *reply == Resp::Nil {
            return LockLine::default();
        }
        let words: Vec<_> = reply.text().split(' ').collect();
        let [until, lease, pushed, waited, holds, fence, request] = words[..] else {
            panic!("no line of a lock: {reply:?}");
        };
        LockLine {
            until: until.parse().unwrap(),
            lease: lease.parse().unwrap(),
            pushed: pushed == "1",
            waited: waited == "1",
            holds: holds.to_owned(),
            fence: fence.parse().unwrap(),
            request: request.to_owned(),
        }
    }
}

impl fmt::Display for LockLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockLine {
            until,
            lease,
            pushed,
            waited,
            holds,
            fence,
            request,
        } = self;
        let (pushed, waited) = (u8::from(*pushed), u8::from(*waited));
        write!(
            f,
            "{until:013} {lease:08} {pushed} {waited} {holds} {fence:016} {request}"
        )
    }
}
