//! The statuses with which the command ends, beside those of CMD. All are below 128.

use std::fmt::Display;
use std::io;

use fairlock::Error;

use crate::signals::Caught;

/// What was asked about is not so: the lock is free, or not held under that fence, or there are warnings.
pub(crate) const NOT_SO: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const BUG: u8 = 70;
pub(crate) const IO: u8 = 74;
pub(crate) const NOT_ACQUIRED: u8 = 75;
pub(crate) const LOST: u8 = 76;
pub(crate) const REFUSED: u8 = 77;
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// Why the command ends without having done its work.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    /// `None` if there is nothing to add to the status.
    pub(crate) message: Option<String>,
    /// The signal that ended this process, if one did.
    pub(crate) signal: Option<Caught>,
}

impl Failure {
    pub(crate) fn new(status: u8, message: impl Display) -> Failure {
        Failure {
            status,
            message: Some(message.to_string()),
            signal: None,
        }
    }

    pub(crate) fn usage(message: impl Display) -> Failure {
        Failure::new(USAGE, message)
    }

    /// A signal ended this process. A shell names that end by the same number.
    pub(crate) fn of_signal(signal: Caught) -> Failure {
        Failure {
            status: 128 + signal.number(),
            message: None,
            signal: Some(signal),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::Timeout { .. }
            | Error::QueueFull { .. }
            | Error::TooManyHolds { .. }
            | Error::NotReplicated { .. } => NOT_ACQUIRED,
            Error::NoQuorum { .. } | Error::Unavailable(_) => UNAVAILABLE,
            Error::Refused(_) => REFUSED,
            Error::Invalid(_) => USAGE,
            Error::Lost(_) => LOST,
            _ => BUG,
        };
        Failure::new(status, error)
    }
}

/// A reader of the output that has gone has seen enough, so that there is nothing to say.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let is_told = error.kind() != io::ErrorKind::BrokenPipe;
        Failure {
            status: IO,
            message: is_told.then(|| error.to_string()),
            signal: None,
        }
    }
}
