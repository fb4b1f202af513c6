//! Removes whatever the server has of requests that are never used again.

use std::fmt::Write;
use std::sync::Arc;

use super::release::end;
use super::{CallKind, Operation, ReleaseOutcome, permits};
use crate::protocol::ids::RequestId;
use crate::protocol::interface::Priority;
use crate::protocol::keys::Keys;
use crate::protocol::rules::Rules;
use crate::protocol::rules::lock::Run;
use crate::protocol::script::{Declared, PubSubMode, ReplyError, ReplyReader, ScriptCall, WITHDRAWALS};
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;
use crate::types::status::Kind;

/// Removes the queue entries and holds of these requests of one client. The requests are never used again.
#[derive(Clone, Debug)]
pub(crate) struct Withdraw {
    pub(crate) keys: Arc<Keys>,
    /// Contains between one and [`MAX_WITHDRAWN`] requests.
    pub(crate) requests: Vec<RequestId>,
    /// As for a release.
    pub(crate) floor: Option<Fence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Withdrawn {
    /// The call removed so many unreachable waiters that a hand-over stopped half-way. It must be repeated.
    pub(crate) more: bool,
}

/// How many requests one call may withdraw. That many take one or two ms of the server.
pub(crate) const MAX_WITHDRAWN: usize = 250;

impl Operation for Withdraw {
    type Reply = Withdrawn;
    const KIND: CallKind = CallKind::Withdraw;

    fn key(&self) -> &str {
        &self.keys.lock
    }

    fn priority(&self) -> Priority {
        Priority::End
    }

    fn floor(&self) -> Option<Fence> {
        self.floor
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn script_call(&self, mode: PubSubMode, declared: Declared) -> ScriptCall {
        let mut script_call = ScriptCall::of_lock(&WITHDRAWALS, &self.keys, declared);
        let start = script_call.text.len();
        for request in &self.requests {
            let space = if script_call.text.len() > start { " " } else { "" };
            write!(script_call.text, "{space}{request}").expect("a string takes what it is given");
        }
        script_call.words.push(start..script_call.text.len());
        script_call.with_address(mode, &self.keys).with_floor(self.floor)
    }

    fn goes_alone(&self) -> bool {
        self.keys.may_go_alone()
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, Withdrawn), ReplyError> {
        let mut words = ReplyReader::of(reply, self.requests[0].as_str())?;
        match words.status {
            1 => words.skip(1),
            5 => return Err(ReplyError::Elsewhere),
            6 => return Err(ReplyError::ClockBehind),
            _ => return Err(words.malformed()),
        }
        let more = words.flag()?;
        Ok((words.now, Withdrawn { more }))
    }

    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> Withdrawn {
        if self.keys.kind != Kind::Lock {
            return permits::withdraw(self, rules, run);
        }
        let Run { now, channels, .. } = run;
        let Withdraw {
            keys,
            requests,
            floor,
        } = self;
        let released = end(
            rules,
            keys,
            &requests[0],
            *floor,
            now,
            channels,
            |queue, holder| {
                let before = holder.holds.len();
                for request in requests {
                    queue.remove(request);
                    holder.holds.remove(request);
                }
                if before > 0 && !holder.is_held() {
                    // No guard has had that hold, but it may have been a vote. The floor is larger than all
                    // fences that were used.
                    let below = floor.map_or(0, |floor| floor.get() - 1);
                    holder.end_told(holder.fence.max(below));
                }
                match holder.holds.len() {
                    after if after == before || after == 0 => ReleaseOutcome::Released,
                    _ => ReleaseOutcome::OneFewer,
                }
            },
        );
        let bound = rules.bound;
        let lock = rules.lock(&keys.lock);
        // Another request may be the first now. Its client only knows when the lease was to end.
        let stays_taken = lock.written.as_ref().is_some_and(|holder| {
            holder.deadline() > now.ms && holder.request.as_ref().is_some_and(RequestId::is_kept)
        });
        Withdrawn {
            more: released.more || stays_taken && lock.tell_first(&keys.channel, now, bound, channels),
        }
    }
}
