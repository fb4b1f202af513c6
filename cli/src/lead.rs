//! `fairlock lead`: a command that runs in one of several places at a time, and in another one when that is
//! gone.

mod http;

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::sleep;

use self::http::Served;
use crate::args::{Lead, Run};
use crate::connection::Place;
use crate::exit::{Failure, LOST, NOT_ACQUIRED, UNAVAILABLE};
use crate::nesting::Nesting;
use crate::report::Report;
use crate::run::{command, kill_after, not_started, on_loss, refuse_foreign, tell};
use crate::signals::Signals;
use crate::supervise::{self, End};
use crate::taking::Held;
use crate::terminal;

/// The pauses before a new campaign, and the length of a term after which they start over.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

pub(crate) async fn lead(lead: &Lead) -> Result<u8, Failure> {
    let run = &lead.run;
    refuse_foreign(run)?;
    if let Some(option) = lead.meaningless() {
        return Err(Failure::usage(format!("{option}: has no meaning for `lead`")));
    }
    let has_command = run.shell_command.is_some() || !run.program.is_empty();
    match (has_command, lead.http) {
        (true, _) => drop(command(run)?),
        (false, Some(_)) => {}
        (false, None) => {
            let name = &run.taking.name;
            let message = format!("nothing to do: use `fairlock lead {name} CMD`, or --http ADDR");
            return Err(Failure::usage(message));
        }
    }
    let kill_after = kill_after(run)?;
    let place = Place::of(&run.connection)?;
    let report = Report::of(&run.taking)?;
    let nesting = Nesting::of(&place, &run.taking.wanted);
    let mut signals = Signals::catch()?;
    let (leading, led) = watch::channel(None);
    if let Some(address) = lead.http {
        let served = Served::new(&run.taking.name, led);
        http::serve(address, served, place.clone(), &report).await?;
    }

    let mut pause = SHORTEST;
    loop {
        let taken = Held::take(&run.taking, &place, None, &mut signals, &report).await;
        // The wait is no part of the term.
        let began = Instant::now();
        let outcome = match taken {
            Ok(held) => {
                leading.send_replace(held.tokens().next());
                if has_command {
                    with_command(run, &nesting, kill_after, held, &mut signals, &report).await?
                } else {
                    without_command(held, &mut signals, &report).await?
                }
            }
            // Time can change these. A lead can be taken away before its first renewal.
            Err(failure) if matches!(failure.status, UNAVAILABLE | NOT_ACQUIRED | LOST) => {
                report.words(failure.message.as_deref().unwrap_or("not acquired"));
                failure.status
            }
            Err(failure) => return Err(failure),
        };
        if signals.has_come() || outcome == 0 {
            return Ok(outcome);
        }
        if began.elapsed() >= LONGEST {
            pause = SHORTEST;
        }
        tokio::select! {
            signal = signals.next() => return Err(Failure::of_signal(signal)),
            () = sleep(pause) => {}
        }
        pause = (2 * pause).min(LONGEST);
    }
}

/// One term with CMD. Returns the status with which it ended; 0 is the end of all terms.
async fn with_command(
    run: &Run,
    nesting: &Nesting,
    kill_after: Duration,
    held: Held,
    signals: &mut Signals,
    report: &Report,
) -> Result<u8, Failure> {
    let mut command = command(run)?;
    tell(&mut command, run, &held, nesting);
    let on_loss = on_loss(run, kill_after);
    let end = supervise::run(&mut command, &held.grants, on_loss, signals, report).await;
    if matches!(end, Ok(End::Stopped)) {
        held.give_up().await;
        return Ok(LOST);
    }
    held.give_back(signals, report).await;
    match end? {
        End::Exited(exit) => Ok(exit.status()),
        End::Interrupted => Err(terminal::interrupt_own_group()),
        End::Stopped => Ok(LOST),
        End::NotStarted(error) => Err(not_started(&command, &error)),
    }
}

/// One term without CMD, for those that ask over HTTP.
async fn without_command(held: Held, signals: &mut Signals, report: &Report) -> Result<u8, Failure> {
    tokio::select! {
        signal = signals.next() => {
            held.give_back(signals, report).await;
            Err(Failure::of_signal(signal))
        }
        () = held.lost() => {
            held.tell_of_loss(report);
            held.give_up().await;
            Ok(LOST)
        }
    }
}
