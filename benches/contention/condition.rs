//! The conditions under which a lock is measured: the network, and what happens to one server of a quorum.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Condition {
    /// Nothing is added to the loopback network, and all servers are well
    Near,
    /// As `near`; one server is killed after the warm-up
    Down,
    /// As `near`; one server is stopped (SIGSTOP) after the warm-up, so that it does not answer
    Hung,
    /// All servers are --delay-us away
    Network,
    /// As `network`; one server is --delay-one-us away
    Far,
}

impl Condition {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Condition::Near => "near",
            Condition::Down => "down",
            Condition::Hung => "hung",
            Condition::Network => "network",
            Condition::Far => "far",
        }
    }

    /// Whether it only makes sense for several servers, of which one may fail.
    pub(crate) const fn needs_quorum(self) -> bool {
        matches!(self, Condition::Down | Condition::Hung | Condition::Far)
    }
}
