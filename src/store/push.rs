//! Pushes: the messages on unlock channels.

use crate::fence::Fence;
use crate::store::ids::RequestId;
use crate::store::interface::Grant;
use crate::time::server_time::ServerTime;

/// A message on an unlock channel. Its first word is its version. Later versions may add more words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    /// The lock was handed to a request: `1 <fence> <deadline> <request>`.
    Granted(Grant),
    /// The lock was released, but stays taken until another time than its waiters know: `2`.
    Kept,
}

impl Push {
    const GRANTED: &str = "1";
    const KEPT: &str = "2";

    /// Returns `None` for an unknown version or form. The client then asks the server.
    pub(crate) fn parse(message: &str) -> Option<Push> {
        let mut parts = message.split(' ');
        match parts.next()? {
            Self::GRANTED => {
                let fence = Fence::new(parts.next()?.parse().ok()?)?;
                let deadline = ServerTime::from_ms(parts.next()?.parse().ok()?);
                let request = RequestId::from_wire(parts.next()?)?;
                Some(Push::Granted(Grant {
                    request,
                    fence,
                    deadline,
                    pushed: true,
                }))
            }
            Self::KEPT => Some(Push::Kept),
            _ => None,
        }
    }

    pub(crate) fn write(&self) -> String {
        match self {
            Push::Granted(grant) => format!(
                "{} {} {} {}",
                Self::GRANTED,
                grant.fence,
                grant.deadline.ms(),
                grant.request
            ),
            Push::Kept => Self::KEPT.to_owned(),
        }
    }
}
