//! Clocks, deadlines and durations.

pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod clock_offset;
pub(crate) mod deadline;
pub(crate) mod deadline_queue;
pub(crate) mod server_time;
