//! The arguments, as clap reads them.

mod kind;
mod operator;

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Arg, Args, Parser, Subcommand, ValueEnum};
use nix::sys::signal::Signal;

pub(crate) use self::kind::{Kinds, Wanted};
pub(crate) use self::operator::{Check, Completions, Holds, List, Man, Release, Status, Top, Watch};
use crate::exit::NOT_ACQUIRED;
use crate::rate::Limit;
use crate::spans;

const SERVER: &str = "\
Without --url, the server is that of FAIRLOCK_URL, else REDIS_URL, else VALKEY_URL. Times are numbers of
seconds, as in 1.5, or have a unit, as in 500ms, 2m, 1h.";

/// How `run` ends. docs/cli.md has the statuses of the other commands too.
const EXIT_STATUS: &str = "\
Exit status: that of CMD, or
  128 + n   signal n ended CMD, or ended fairlock while it waited
  75        not acquired (-E sets another)
  76        the lease was lost, and CMD was stopped for it
  69        no server answered
  77        the server refuses
  64        wrong arguments
  126, 127  CMD is not executable, was not found
  74, 70    a system call failed, a bug";

/// Runs a command under a fair distributed lock on Redis or Valkey.
#[derive(Debug, Parser)]
#[command(
    name = "fairlock",
    version,
    after_help = format!("{SERVER}\n\n{EXIT_STATUS}"),
    subcommand_required = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take the lock, run CMD, and give the lock back.
    #[command(after_help = EXIT_STATUS)]
    Run(Run),
    /// Run CMD while this process leads. Campaign again when the lead is lost or CMD fails.
    Lead(Lead),
    /// Take the lock, print its fence, and hold it until SIGINT, SIGTERM or the end of stdin.
    Hold(Hold),
    /// Exit with 0 if the command above still holds the lock, else with 1.
    Holds(Holds),
    /// Show who holds locks, and how many wait.
    Status(Status),
    /// Show the locks that are held or waited for.
    List(List),
    /// Show locks whenever their holders or waiters change.
    Watch(Watch),
    /// Show the locks live on a terminal, those with most waiters first.
    Top(Top),
    /// End the hold that `status` showed.
    Release(Release),
    /// Say what is wrong with a server: version, rights, eviction, persistence, clock, replicas.
    Check(Check),
    /// Print what a shell needs to complete the arguments of fairlock.
    Completions(Completions),
    /// Print the manual page.
    Man(Man),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// Run STR with $SHELL -c, or with sh -c.
    #[arg(short = 'c', long = "command", value_name = "STR", conflicts_with = "program")]
    pub(crate) shell_command: Option<OsString>,
    /// How long CMD has between the signal and SIGKILL when the lease is lost [default: 5s, or a third of the
    /// lease or of --max-hold].
    #[arg(long, value_name = "T", value_parser = spans::parse)]
    pub(crate) kill_after: Option<Duration>,
    /// The signal that stops CMD when the lease is lost.
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = parse_signal)]
    pub(crate) signal: Signal,
    /// What happens to CMD when the lease is lost.
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,
    #[command(flatten)]
    pub(crate) limit: Limit,
    #[command(flatten)]
    pub(crate) foreign: Foreign,
    /// The command and its arguments.
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub(crate) program: Vec<OsString>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Whether an option was given.
type IsGiven = fn(&Run) -> bool;

/// The options of `run` that `lead` refuses: the id, how a refusal names it, and whether it was given. A
/// leader has one lock, waits for as long as it takes, and is stopped when it does not lead any more.
const NOT_FOR_LEADERS: [(&str, &str, IsGiven); 13] = [
    ("rate", "--rate", |run| run.limit.rate.is_some()),
    ("burst", "--burst", |run| run.limit.burst != 0),
    ("cost", "--cost", |run| run.limit.cost != 1),
    ("also", "--also", |run| !run.taking.also.is_empty()),
    ("shared", "--shared", |run| run.taking.wanted.shared),
    ("exclusive", "--exclusive", |run| run.taking.wanted.exclusive),
    ("permits", "--permits", |run| run.taking.wanted.permits.is_some()),
    ("of", "--of", |run| run.taking.wanted.of.is_some()),
    ("nonblock", "--nonblock", |run| run.taking.nonblock),
    ("wait", "--wait", |run| run.taking.wait.is_some()),
    ("at_least", "--at-least", |run| run.taking.at_least.is_some()),
    ("conflict_exit_code", "--conflict-exit-code", |run| {
        run.taking.conflict_exit_code != NOT_ACQUIRED
    }),
    ("on_lost", "--on-lost warn", |run| run.on_lost == OnLost::Warn),
];

/// Hides an option that `lead` refuses from its help.
fn hide_unless_for_leaders(arg: Arg) -> Arg {
    let is_refused = NOT_FOR_LEADERS.iter().any(|(id, ..)| arg.get_id() == id);
    let hides = is_refused || arg.is_hide_set();
    arg.hide(hides)
}

#[derive(Debug, Args)]
#[command(mut_args(hide_unless_for_leaders))]
pub(crate) struct Lead {
    /// Serve /leader, /healthz and /metrics at this address. CMD may then be missing.
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub(crate) http: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) run: Run,
}

impl Lead {
    /// An option of `run` that was given, and has no meaning for a leader.
    pub(crate) fn meaningless(&self) -> Option<&'static str> {
        let given = NOT_FOR_LEADERS
            .into_iter()
            .find(|(.., is_given)| is_given(&self.run));
        given.map(|(_, option, _)| option)
    }
}

/// How locks are taken, and what is said of them.
#[derive(Debug, Args)]
pub(crate) struct Taking {
    /// The name of the lock.
    pub(crate) name: String,
    /// Take this lock too: all of them, or none. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) also: Vec<String>,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
    /// Do not wait.
    #[arg(short = 'n', long, visible_alias = "try")]
    pub(crate) nonblock: bool,
    /// Wait no longer than this; 0 is -n.
    #[arg(
        short = 'w',
        long,
        visible_alias = "timeout",
        value_name = "T",
        allow_negative_numbers = true,
        conflicts_with = "nonblock",
        value_parser = spans::parse
    )]
    pub(crate) wait: Option<Duration>,
    /// The exit status if the lock was not acquired.
    #[arg(short = 'E', long, value_name = "N", default_value_t = NOT_ACQUIRED)]
    pub(crate) conflict_exit_code: u8,
    /// How long the server keeps the lock without a renewal [default: 30s, or --longest-lease if less].
    #[arg(
        long,
        value_name = "T",
        env = "FAIRLOCK_LEASE",
        hide_env_values = true,
        value_parser = spans::parse
    )]
    pub(crate) lease: Option<Duration>,
    /// End the hold after this time, whatever happens.
    #[arg(long, value_name = "T", value_parser = spans::parse)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock taken until this time after its grant, even if it is released sooner.
    #[arg(long, value_name = "T", value_parser = spans::parse)]
    pub(crate) at_least: Option<Duration>,
    /// Say nothing of waiting, or that the lock was not acquired.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say how long it took, too.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Write events as JSON, one a line, to stderr.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write events as JSON, one a line, to this file descriptor.
    #[arg(long, value_name = "N", conflicts_with = "json")]
    pub(crate) status_fd: Option<u16>,
}

impl Taking {
    /// The names of all locks, in the order of the arguments.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let also = self.also.iter().map(String::as_str);
        std::iter::once(&*self.name).chain(also)
    }
}

/// Flags of flock(1) that have no meaning here.
#[derive(Debug, Args)]
pub(crate) struct Foreign {
    #[arg(short = 'F', long, hide = true)]
    no_fork: bool,
    #[arg(short = 'o', long, hide = true)]
    close: bool,
    #[arg(short = 'u', long, hide = true)]
    unlock: bool,
}

impl Foreign {
    /// Why one of them cannot be had, if one was given.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        let Foreign {
            no_fork,
            close,
            unlock,
        } = self;
        if *no_fork {
            return Some("-F, --no-fork: fairlock must stay beside CMD, because it renews the lease");
        }
        if *close {
            return Some(
                "-o, --close: CMD inherits no lock that it could keep, so there is nothing to close",
            );
        }
        unlock.then_some(
            "-u, --unlock: the lock is given back when CMD ends; `fairlock release` ends a hold by force",
        )
    }
}

#[derive(Debug, Args)]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) taking: Taking,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Where the locks are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connection {
    /// The server; several are a quorum.
    #[arg(long)]
    pub(crate) url: Vec<String>,
    /// In a quorum: its servers keep every write over a restart. Must be the same in all clients.
    #[arg(long)]
    pub(crate) durable: bool,
    /// In a quorum: the longest lease of any client. Must be the same in all clients [default: 60s].
    #[arg(long, value_name = "T", value_parser = spans::parse)]
    pub(crate) longest_lease: Option<Duration>,
    /// What the keys of the locks begin with [default: fairlock].
    #[arg(long, value_name = "P", env = "FAIRLOCK_PREFIX", hide_env_values = true)]
    pub(crate) prefix: Option<String>,
    /// What `status` calls this process [default: user@host:pid].
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// A file with the password, for a URL without one. FAIRLOCK_PASSWORD is the password itself.
    #[arg(
        long,
        value_name = "FILE",
        env = "FAIRLOCK_PASSWORD_FILE",
        hide_env_values = true
    )]
    pub(crate) password_file: Option<PathBuf>,
    /// The certificate authorities to trust instead of the system's, as PEM.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// The certificate to show to the server, as PEM.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Its key, as PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Stop it.
    Kill,
    /// Only say so.
    Warn,
}

/// A name with or without SIG, or a number.
fn parse_signal(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let named = Signal::from_str(&upper).or_else(|_| Signal::from_str(&format!("SIG{upper}")));
    let numbered = || {
        text.parse()
            .ok()
            .and_then(|number: i32| Signal::try_from(number).ok())
    };
    named
        .ok()
        .or_else(numbered)
        .ok_or_else(|| "must be the name or the number of a signal, as TERM, SIGINT or 15".to_owned())
}

/// An address to listen at. Without a host, it is every address of the machine.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let text = match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => text.to_owned(),
    };
    let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| "must be as 127.0.0.1:4040, localhost:4040 or :4040".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::exit;

    #[test]
    fn definition_of_the_arguments_has_no_contradiction() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn signal_has_a_name_or_a_number() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse_signal(text), Ok(Signal::SIGTERM), "{text}");
        }
        for text in ["", "TREM", "0", "-15", "99"] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn address_is_written_as_everybody_does() {
        for (text, expected) in [
            ("127.0.0.1:4040", "127.0.0.1:4040"),
            ("[::1]:4040", "[::1]:4040"),
            (":4040", "[::]:4040"),
        ] {
            assert_eq!(parse_address(text), Ok(expected.parse().unwrap()));
        }
        assert!(parse_address("localhost:4040").unwrap().ip().is_loopback());
        for text in ["", "4040", ":", "localhost", "127.0.0.1:99999"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn help_of_lead_shows_its_own_options_and_none_that_it_refuses() {
        let mut arguments = Arguments::command();
        let lead = arguments.find_subcommand_mut("lead").expect("lead");
        let help = lead.render_help().to_string();
        let (own, servers) = help.split_once("\nServer:").expect("two groups");
        assert!(
            own.contains("--http <ADDR>") && !servers.contains("--http"),
            "{help}"
        );
        for refused in [
            "--also",
            "--shared",
            "--exclusive",
            "--permits",
            "--of",
            "--nonblock",
            "--wait",
            "--at-least",
            "--conflict-exit-code",
            "--on-lost",
        ] {
            assert!(!help.contains(refused), "{refused}: {help}");
        }
    }

    #[test]
    fn help_of_run_lists_every_exit_status() {
        let mut arguments = Arguments::command();
        let run = arguments.find_subcommand_mut("run").expect("run");
        let help = run.render_help().to_string();
        let (_, statuses) = help.split_once("Exit status:").expect("the statuses");
        for status in [
            exit::USAGE,
            exit::UNAVAILABLE,
            exit::BUG,
            exit::IO,
            exit::NOT_ACQUIRED,
            exit::LOST,
            exit::REFUSED,
            exit::NOT_EXECUTABLE,
            exit::NOT_FOUND,
        ] {
            assert!(statuses.contains(&status.to_string()), "{status}: {statuses}");
        }
    }

    #[test]
    fn options_end_where_the_command_begins() {
        let read = |words: &[&str]| {
            let words = ["fairlock", "run"].iter().chain(words);
            match Arguments::try_parse_from(words).map(|arguments| arguments.command) {
                Ok(Command::Run(run)) => run,
                other => panic!("{other:?}"),
            }
        };
        let run = read(&["-w", "2", "a", "grep", "-c", "-n", "x"]);
        assert_eq!(run.program, ["grep", "-c", "-n", "x"]);
        assert!(!run.taking.nonblock && run.shell_command.is_none());
        let run = read(&["a", "--", "-odd", "--", "-n"]);
        assert_eq!(run.program, ["-odd", "--", "-n"]);
        let run = read(&["-n", "a", "-c", "echo $HOME"]);
        assert_eq!(run.shell_command, Some("echo $HOME".into()));
        assert!(run.taking.nonblock && run.program.is_empty());
    }
}
