//! Pushes: the messages that tell a client of a grant.

use crate::fence::Fence;
use crate::store::calls::Grant;
use crate::store::ids::RequestId;
use crate::time::server_time::ServerTime;

/// A message on an unlock channel: `<version> <fence> <deadline> <request>`. Later versions may add more
/// words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    pub(crate) grant: Grant,
}

impl Push {
    const VERSION: &str = "1";

    /// Returns `None` for an unknown version or form. The client then asks the server.
    pub(crate) fn parse(message: &str) -> Option<Push> {
        let mut parts = message.split(' ');
        if parts.next()? != Self::VERSION {
            return None;
        }
        let fence = Fence::new(parts.next()?.parse().ok()?)?;
        let deadline = ServerTime::from_ms(parts.next()?.parse().ok()?);
        let request = RequestId::from_wire(parts.next()?)?;
        Some(Push {
            grant: Grant {
                request,
                fence,
                deadline,
                pushed: true,
            },
        })
    }

    pub(crate) fn write(grant: &Grant) -> String {
        format!(
            "{} {} {} {}",
            Self::VERSION,
            grant.fence,
            grant.deadline.ms(),
            grant.request
        )
    }
}
