//! Who of this process asks now: the local queue of each lock, its gate, and the place that is asked.

pub(crate) mod gate;
pub(crate) mod local_queue;
pub(crate) mod place;
pub(crate) mod rate_limit;
