//! Without the feature `metrics`, nothing is recorded.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::counters::{Correction, GuardEnd, Outcome};
use crate::protocol::{CallKind, Failure};
use crate::time::clock::{Clock, LocalTime};

#[derive(Debug, Default)]
pub(crate) struct Metrics(());

#[derive(Clone, Debug, Default)]
pub(crate) struct Group(());

#[derive(Debug)]
pub(crate) struct Pending;

#[derive(Debug)]
pub(crate) struct Timer;

impl Metrics {
    pub(crate) fn of_quorum() -> Metrics {
        Metrics(())
    }

    pub(crate) fn group(&self, _: &str, _: Option<&Arc<str>>) -> Group {
        Group(())
    }

    pub(crate) fn pending(&self) -> Pending {
        Pending
    }

    pub(crate) fn timer(&self, _: &Clock) -> Timer {
        Timer
    }

    pub(crate) fn called(&self, _: &Timer, _: CallKind, _: &Clock, _: Result<LocalTime, &Failure>) {}

    pub(crate) fn reconnected(&self, _: &'static str, _: &str) {}
}

impl Timer {
    pub(crate) fn since(_: LocalTime) -> Timer {
        Timer
    }
}

impl Group {
    pub(crate) fn waits(&self) -> Option<Pending> {
        None
    }

    pub(crate) fn held(&self) -> Option<Pending> {
        None
    }

    pub(crate) fn asked(&self, _: Outcome, _: &Timer, _: impl FnOnce() -> LocalTime) {}
    pub(crate) fn ended(&self, _: GuardEnd, _: Duration) {}
    pub(crate) fn margin(&self, _: Duration) {}
    pub(crate) fn missed_turn(&self) {}
    pub(crate) fn corrected(&self, _: Correction) {}
}
