//! What a client hears of a lock that it may retain.

use crate::types::fence::Fence;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heard {
    /// The number of the present subscription. It changes whenever a message may have been lost.
    pub(crate) subscription: Option<u64>,
    /// The last hold that somebody wanted, by its fence.
    pub(crate) wanted: Option<Fence>,
}

impl Heard {
    /// Whether nobody has wanted the hold with this fence so far, and this subscription would have told. A
    /// message about a later hold shows that an earlier one is wanted no less.
    pub(crate) fn is_quiet(&self, subscription: u64, fence: Fence) -> bool {
        self.subscription == Some(subscription) && self.wanted.is_none_or(|wanted| wanted < fence)
    }
}
