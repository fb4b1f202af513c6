//! Pushes: the messages on unlock channels.

use std::fmt::Write;

use crate::protocol::ids::RequestId;
use crate::protocol::interface::{Grant, read_slot};
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;

/// A message on an unlock channel. Its first word is its version. Later versions may add more words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    /// The lock was handed to a request: `1 <fence> <deadline> <request>`. For permits, several grants can
    /// follow one another, each with its slot as a fourth word.
    Granted(Vec<Grant>),
    /// The lock was released, but stays taken until another time than its waiters know: `2`.
    Kept,
    /// Somebody wants the lock, which this client may retain, or it was taken from it by force: `3 <fence>`.
    /// The fence is that of the hold.
    Wanted(Fence),
}

impl Push {
    const GRANTED: &str = "1";
    const KEPT: &str = "2";
    const WANTED: &str = "3";

    /// Returns `None` for an unknown version or form. The client then asks the server.
    pub(crate) fn parse(message: &str) -> Option<Push> {
        let mut parts = message.split(' ');
        match parts.next()? {
            Self::GRANTED => {
                let mut grants = vec![grant(parts.next()?, &mut parts)?];
                while let Some(fence) = parts.next() {
                    let Some(grant) = grant(fence, &mut parts) else {
                        break;
                    };
                    grants.push(grant);
                }
                Some(Push::Granted(grants))
            }
            Self::KEPT => Some(Push::Kept),
            Self::WANTED => Some(Push::Wanted(Fence::new(parts.next()?.parse().ok()?)?)),
            _ => None,
        }
    }

    pub(crate) fn write(&self) -> String {
        match self {
            Push::Granted(grants) => {
                let mut message = Self::GRANTED.to_owned();
                for grant in grants {
                    let (fence, deadline) = (grant.fence, grant.deadline.ms());
                    // Writing to a string cannot fail.
                    let _ = write!(message, " {fence} {deadline} {}", grant.request);
                    let _ = match grant.slot {
                        Some(slot) => write!(message, " {slot}"),
                        None if grant.request.is_of_permits() => write!(message, " -"),
                        None => Ok(()),
                    };
                }
                message
            }
            Push::Kept => Self::KEPT.to_owned(),
            Push::Wanted(fence) => format!("{} {fence}", Self::WANTED),
        }
    }
}

/// Reads one grant of a message. Later versions may have other words after the grants.
fn grant<'a>(fence: &str, rest: &mut impl Iterator<Item = &'a str>) -> Option<Grant> {
    let fence = Fence::new(fence.parse().ok()?)?;
    let deadline = ServerTime::from_ms(rest.next()?.parse().ok()?);
    let request = RequestId::from_wire(rest.next()?)?;
    let slot = match request.is_of_permits() {
        true => read_slot(rest.next()?)?,
        false => None,
    };
    Some(Grant {
        request,
        fence,
        deadline,
        pushed: true,
        slot,
    })
}
