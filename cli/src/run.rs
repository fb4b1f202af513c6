//! `fairlock run`: a command under a lock, or under several.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;

use crate::args::Run;
use crate::connection::{Place, default_lease};
use crate::exit::{Failure, IO, LOST, NOT_EXECUTABLE, NOT_FOUND};
use crate::loss::Margin;
use crate::nesting::Nesting;
use crate::rate;
use crate::report::Report;
use crate::signals::Signals;
use crate::spans::show;
use crate::supervise::{self, End, OnLoss};
use crate::taking::Held;
use crate::terminal;

const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);

pub(crate) async fn run(run: &Run) -> Result<u8, Failure> {
    refuse_foreign(run)?;
    if let Some(rate) = run.limit.rate {
        return rate::run(run, rate).await;
    }
    let mut command = command(run)?;
    let kill_after = kill_after(run)?;
    let place = Place::of(&run.connection)?;
    let report = Report::of(&run.taking)?;
    let mut signals = Signals::catch()?;

    let nesting = Nesting::of(&place, &run.taking.wanted);
    let held = Held::take(&run.taking, &place, Some(&nesting), &mut signals, &report).await?;

    tell(&mut command, run, &held, &nesting);
    let on_loss = on_loss(run, kill_after);
    let end = supervise::run(&mut command, &held.grants, on_loss, &mut signals, &report).await;
    match end {
        Ok(End::Exited(exit)) => {
            held.give_back(&mut signals, &report).await;
            Ok(exit.status())
        }
        Ok(End::Interrupted) => {
            held.give_back(&mut signals, &report).await;
            Err(terminal::interrupt_own_group())
        }
        Ok(End::Stopped) => {
            held.give_up().await;
            Ok(LOST)
        }
        Ok(End::NotStarted(error)) => {
            held.give_back(&mut signals, &report).await;
            Err(not_started(&command, &error))
        }
        Err(error) => {
            held.give_back(&mut signals, &report).await;
            Err(error.into())
        }
    }
}

/// What the environment of CMD says of the locks.
pub(crate) fn tell(command: &mut Command, run: &Run, held: &Held, nesting: &Nesting) {
    let guards = held.grants.iter().map(|grant| &grant.guard);
    command
        .env("FAIRLOCK_HELD", "1")
        .env("FAIRLOCK_NAME", &run.taking.name)
        .env("FAIRLOCK_FENCE", held.fences(&run.taking))
        .env("FAIRLOCK_OWNER", nesting.for_child(guards));
    // The slot of an outer run says nothing about these locks.
    match held.slots(&run.taking) {
        Some(slots) => command.env("FAIRLOCK_SLOT", slots),
        None => command.env_remove("FAIRLOCK_SLOT"),
    };
}

pub(crate) fn on_loss(run: &Run, kill_after: Duration) -> OnLoss {
    OnLoss {
        what: run.on_lost,
        signal: run.signal,
        margin: Margin {
            kill_after,
            max_hold: run.taking.max_hold,
        },
    }
}

/// Refuses options of other programs that have no meaning here.
pub(crate) fn refuse_foreign(run: &Run) -> Result<(), Failure> {
    run.foreign
        .refusal()
        .map_or(Ok(()), |refusal| Err(Failure::usage(refusal)))
}

pub(crate) fn command(run: &Run) -> Result<Command, Failure> {
    if let Some(text) = &run.shell_command {
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
        let mut command = Command::new(shell.unwrap_or_else(|| OsString::from("sh")));
        command.arg("-c").arg(text);
        return Ok(command);
    }
    let Some((program, arguments)) = run.program.split_first() else {
        let name = &run.taking.name;
        let message = if name.bytes().all(|byte| byte.is_ascii_digit()) {
            format!(
                "{name}: a file descriptor cannot hold this lock, since its lease needs a process that \
                 renews it. Use `fairlock run NAME CMD`, or `fairlock hold NAME`"
            )
        } else {
            format!("no command to run: use `fairlock run {name} CMD`, or `fairlock hold {name}`")
        };
        return Err(Failure::usage(message));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// A span that is as long as the lease would stop CMD as soon as one renewal is late.
pub(crate) fn kill_after(run: &Run) -> Result<Duration, Failure> {
    let lease = (run.taking.lease).unwrap_or_else(|| default_lease(run.connection.longest_lease));
    let longest = run.taking.max_hold.map_or(lease, |max_hold| max_hold.min(lease));
    match run.kill_after {
        None => Ok(DEFAULT_KILL_AFTER.min(longest / 3)),
        Some(kill_after) if kill_after < longest => Ok(kill_after),
        Some(kill_after) => Err(Failure::usage(format!(
            "--kill-after {}: must be less than the lease and --max-hold, here {}",
            show(kill_after),
            show(longest)
        ))),
    }
}

pub(crate) fn not_started(command: &Command, error: &io::Error) -> Failure {
    let status = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => NOT_FOUND,
        // Not the command is at fault, but this system.
        Some(Errno::ENOMEM | Errno::EAGAIN | Errno::EMFILE | Errno::ENFILE) => IO,
        _ => NOT_EXECUTABLE,
    };
    Failure::new(
        status,
        format!("{}: {error}", command.get_program().to_string_lossy()),
    )
}
