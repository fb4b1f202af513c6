//! Rate limits: `fairlock run --rate`, a command that begins when its turn comes, and `fairlock status
//! --rate`. Nothing is held while the command runs, so it takes the place of this process.

use std::io::{Write, stdout};
use std::os::unix::process::CommandExt;
use std::time::Duration;

use clap::Args;
use fairlock::{Error, LockManager, RateLimit, RateStatus};
use futures_util::future::try_join_all;
use serde::Serialize;

use crate::args::{self, Run, Taking};
use crate::connection::Place;
use crate::exit::Failure;
use crate::report::printable;
use crate::run::{command, not_started};
use crate::signals::Signals;
use crate::spans;

/// How fast commands may begin.
#[derive(Debug, Args)]
pub(crate) struct Limit {
    /// Wait until CMD may begin by this rate, as in 50/s, 3/h or 100/10s, and hold nothing while it runs.
    #[arg(
        long,
        value_name = "N/T",
        value_parser = Rate::parse,
        conflicts_with_all = [
            "also", "shared", "exclusive", "permits", "of", "max_hold", "at_least", "kill_after", "verbose",
            "json", "status_fd"
        ]
    )]
    pub(crate) rate: Option<Rate>,
    /// With --rate: as many may begin early, after a time with fewer.
    #[arg(long, value_name = "N", requires = "rate", default_value_t = 0)]
    pub(crate) burst: u32,
    /// With --rate: how many turns CMD takes.
    #[arg(long, value_name = "N", requires = "rate", default_value_t = 1)]
    pub(crate) cost: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    turns: u32,
    period: Duration,
}

impl Rate {
    pub(crate) fn parse(text: &str) -> Result<Rate, String> {
        let wrong = || "must be a number of turns and a time, as in 50/s, 3/h or 100/10s".to_owned();
        let (turns, period) = text.split_once('/').ok_or_else(wrong)?;
        if period.is_empty() {
            return Err(wrong());
        }
        let one_of = match period.starts_with(|c: char| c.is_ascii_digit()) {
            true => "",
            false => "1",
        };
        Ok(Rate {
            turns: turns.parse().map_err(|_| wrong())?,
            period: spans::parse(&format!("{one_of}{period}")).map_err(|_| wrong())?,
        })
    }

    fn limit(self, locks: &LockManager, name: &str, burst: u32) -> RateLimit {
        locks.rate_limit(name, self.turns, self.period).burst(burst)
    }
}

pub(crate) async fn run(run: &Run, rate: Rate) -> Result<u8, Failure> {
    let mut command = command(run)?;
    let (taking, limit) = (&run.taking, &run.limit);
    let place = Place::of(&run.connection)?;
    let mut signals = Signals::catch()?;
    let of = |locks: &LockManager| rate.limit(locks, &taking.name, limit.burst).cost(limit.cost);
    place.check_rate_limits(|locks| vec![of(locks)]).await?;
    let turn = async {
        let locks = place.connect().await?;
        let wait = match (taking.nonblock, taking.wait) {
            (true, _) => Duration::ZERO,
            (false, wait) => wait.unwrap_or(Duration::MAX),
        };
        let turn = of(&locks).acquire_timeout(wait).await;
        Ok::<_, Failure>((locks, turn))
    };
    let (locks, turn) = tokio::select! {
        turn = turn => turn?,
        signal = signals.next() => return Err(Failure::of_signal(signal)),
    };
    // Nothing is left to give back.
    let _ = locks.close().await;
    turn.map_err(|error| refusal(error, taking))?;
    let error = command.exec();
    Err(not_started(&command, &error))
}

fn refusal(error: Error, taking: &Taking) -> Failure {
    if !matches!(error, Error::Timeout { .. }) {
        return error.into();
    }
    let message = format!("{} has no turn left in this time", taking.name);
    Failure {
        status: taking.conflict_exit_code,
        message: (!taking.quiet).then_some(message),
        signal: None,
    }
}

/// A rate limit, as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    #[serde(flatten)]
    status: RateStatus,
}

/// `fairlock status --rate`.
pub(crate) async fn status(asked: &args::Status, rate: Rate) -> Result<u8, Failure> {
    let place = Place::of(&asked.looking.connection)?;
    let limits = |locks: &LockManager| -> Vec<RateLimit> {
        let names = asked.names.iter();
        names.map(|name| rate.limit(locks, name, asked.burst)).collect()
    };
    place.check_rate_limits(limits).await?;
    let locks = place.connect().await?;
    let statuses = limits(&locks)
        .into_iter()
        .map(|limit| async move { limit.status().await });
    let statuses = try_join_all(statuses).await?;
    let mut stdout = stdout().lock();
    for (name, status) in asked.names.iter().zip(statuses) {
        let text = if asked.looking.json {
            serde_json::to_string(&Shown { name, status }).map_err(std::io::Error::from)?
        } else {
            let next = match status.available {
                0 => format!("the next may begin in {}", spans::show(status.next_turn)),
                available => format!("{available} may begin now"),
            };
            printable(&format!("{name}: {next}, {} waiting", status.waiting))
        };
        writeln!(stdout, "{text}")?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_and_a_time() {
        let rate = |turns, ms| {
            Ok(Rate {
                turns,
                period: Duration::from_millis(ms),
            })
        };
        assert_eq!(Rate::parse("50/s"), rate(50, 1000));
        assert_eq!(Rate::parse("3/h"), rate(3, 3_600_000));
        assert_eq!(Rate::parse("100/10s"), rate(100, 10_000));
        assert_eq!(Rate::parse("10/500ms"), rate(10, 500));
        for wrong in ["", "50", "/s", "50/", "x/s", "50/x", "-1/s", "50/s/s"] {
            assert!(Rate::parse(wrong).is_err(), "{wrong}");
        }
    }
}
