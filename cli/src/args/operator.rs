//! The arguments of the commands that take no lock.

use std::time::Duration;

use clap::Args;
use clap_complete::Shell;

use super::{Connection, Kinds, Wanted};
use crate::rate::Rate;
use crate::spans;

#[derive(Debug, Args)]
pub(crate) struct Holds {
    /// The name of the lock.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The names of the locks.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Exit with 1 if one of the locks is free.
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// Show the rate limits of these names instead, for this rate, as in 50/s, 3/h or 100/10s.
    #[arg(long, value_name = "N/T", value_parser = Rate::parse, conflicts_with_all = ["exit_code", "kind"])]
    pub(crate) rate: Option<Rate>,
    /// With --rate: as many may begin early, after a time with fewer.
    #[arg(long, value_name = "N", requires = "rate", default_value_t = 0)]
    pub(crate) burst: u32,
    #[command(flatten)]
    pub(crate) looking: Looking,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Which names, with * for any number of characters, and ? for one.
    #[arg(value_name = "GLOB", default_value = "*")]
    pub(crate) pattern: String,
    #[command(flatten)]
    pub(crate) looking: Looking,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The names of the locks.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// How often to look.
    #[arg(long, value_name = "T", default_value = "1s", value_parser = spans::parse)]
    pub(crate) interval: Duration,
    #[command(flatten)]
    pub(crate) looking: Looking,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Which names, with * for any number of characters, and ? for one.
    #[arg(value_name = "GLOB", default_value = "*")]
    pub(crate) pattern: String,
    /// How long to wait between two looks.
    #[arg(long, value_name = "T", default_value = "1s", value_parser = spans::parse)]
    pub(crate) interval: Duration,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// How locks are shown.
#[derive(Debug, Args)]
pub(crate) struct Looking {
    #[command(flatten)]
    pub(crate) kinds: Kinds,
    /// Write each lock as JSON, one a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The name of the lock.
    pub(crate) name: String,
    /// The fence of the hold to end, as `status` shows it.
    #[arg(long, value_name = "N")]
    pub(crate) fence: u64,
    #[command(flatten)]
    pub(crate) kinds: Kinds,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Exit with 1 if there is a warning, and nothing worse.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Show only what is not as it should be.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Also check what programs need that wait for so many replicas.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) replicas: u32,
    /// Write each finding as JSON, one a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Print the page of this command instead.
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
}
