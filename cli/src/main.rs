//! The command `fairlock`: a program runs under a distributed lock. `docs/cli.md` describes it.

#[cfg(not(unix))]
compile_error!("fairlock-cli needs process groups and signals, as Unix has them");

mod any_lock;
mod args;
mod check;
mod child;
mod connection;
mod exit;
mod generate;
mod hold;
mod lead;
mod look;
mod loss;
mod nesting;
mod output;
mod password;
mod rate;
mod report;
mod run;
mod signals;
mod spans;
mod supervise;
mod taking;
mod terminal;
mod top;

use std::io::{Write, stdout};
use std::panic;
use std::process::exit;

use clap::Parser;

use self::args::{Arguments, Command};
use self::exit::{BUG, Failure, USAGE};
use self::report::say;
use self::signals::Caught;

fn main() {
    forget_empty_variables();
    signals::unblock();
    let arguments = Arguments::try_parse().unwrap_or_else(|error| exit(i32::from(told(&error))));
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |bug| {
        print(bug);
        // A bug in a task must not end CMD before its lease does.
        if !supervise::has_command() {
            exit(i32::from(BUG));
        }
    }));
    let mut signal = None;
    let followed = panic::catch_unwind(|| follow(&arguments.command));
    let status = followed
        .unwrap_or_else(|_| exit(i32::from(BUG)))
        .unwrap_or_else(|failure| {
            if let Some(message) = &failure.message {
                say(message);
            }
            signal = failure.signal;
            failure.status
        });
    output::finish();
    // For other signals the status is enough, and SIGQUIT would leave a core with passwords in it.
    if signal == Some(Caught::INTERRUPT) {
        signals::end_by_interrupt();
    }
    // Nothing else is waited for: a thread may be reading from stdin.
    exit(i32::from(status))
}

/// Prints what is wrong with the arguments, or the help or version that they ask for. Returns the status.
fn told(error: &clap::Error) -> u8 {
    let printed = error.print().and_then(|()| stdout().flush());
    if error.use_stderr() {
        return USAGE;
    }
    let Err(failure) = printed.map_err(Failure::from) else {
        return 0;
    };
    if let Some(message) = &failure.message {
        say(message);
        output::finish();
    }
    failure.status
}

/// A variable that is set and empty, as docker compose passes on one that is not set, counts as not set.
#[allow(unsafe_code)]
fn forget_empty_variables() {
    for (name, value) in std::env::vars_os() {
        if value.is_empty() && name.to_string_lossy().starts_with("FAIRLOCK_") {
            // SAFETY: no other thread has been started yet that could read the environment.
            unsafe { std::env::remove_var(name) };
        }
    }
}

fn follow(command: &Command) -> Result<u8, Failure> {
    // CMD is started by this thread, and gets a signal when this thread ends, so all work is done here.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            Command::Run(run) => run::run(run).await,
            Command::Lead(lead) => lead::lead(lead).await,
            Command::Hold(hold) => hold::hold(hold).await,
            Command::Holds(holds) => look::holds(holds).await,
            Command::Status(status) => look::status(status).await,
            Command::List(list) => look::list(list).await,
            Command::Watch(watch) => look::watch(watch).await,
            Command::Top(top) => top::top(top).await,
            Command::Release(release) => look::release(release).await,
            Command::Check(check) => check::check(check).await,
            Command::Completions(completions) => generate::completions(completions.shell),
            Command::Man(man) => generate::man(man.command.as_deref()),
        }
    })
}
