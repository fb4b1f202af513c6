//! The promises of the command line.

use super::{Edit, edit};

const CHILD: &str = "cli/src/child.rs";
const CHECK: &str = "cli/src/check.rs";
const CONNECTION: &str = "cli/src/connection.rs";
const HOLD: &str = "cli/src/hold.rs";
const HTTP: &str = "cli/src/lead/http.rs";
const KIND: &str = "cli/src/args/kind.rs";
const LEAD: &str = "cli/src/lead.rs";
const LOOK: &str = "cli/src/look.rs";
const LOSS: &str = "cli/src/loss.rs";
const NESTING: &str = "cli/src/nesting.rs";
const MAIN: &str = "cli/src/main.rs";
const OUTPUT: &str = "cli/src/output.rs";
const REPORT: &str = "cli/src/report.rs";
const RIGHTS: &str = "src/servers/redis/diagnosis/rights.rs";
const SCREEN: &str = "cli/src/top/screen.rs";
const SIGNALS: &str = "cli/src/signals.rs";
const STATE: &str = "src/servers/redis/diagnosis/state.rs";
const SUPERVISE: &str = "cli/src/supervise.rs";
const TAKING: &str = "cli/src/taking.rs";
const TERMINAL: &str = "cli/src/terminal.rs";
const BOARD: &str = "cli/src/top/board.rs";
const TOP: &str = "cli/src/top.rs";
const TTY: &str = "cli/src/top/tty.rs";

const ON_CHECK: &[&str] = &["--package fairlock-cli --test commands check::"];
const ON_HOLD: &[&str] = &["--package fairlock-cli --test commands hold::"];
const ON_LEAD: &[&str] = &["--package fairlock-cli --test commands lead::"];
const ON_LOOK: &[&str] = &["--package fairlock-cli --test commands look::"];
const ON_LOSS: &[&str] = &["--package fairlock-cli --test commands loss::"];
const ON_NESTING: &[&str] = &["--package fairlock-cli --test commands nesting::"];
const ON_PERMITS: &[&str] = &["--package fairlock-cli --test commands permits::"];
const ON_SETTINGS: &[&str] = &["--package fairlock-cli --test commands settings::"];
const ON_SIGNALS: &[&str] = &["--package fairlock-cli --test commands signals::"];
const ON_TERMINAL: &[&str] = &["--package fairlock-cli --test commands terminal::"];
const ON_TOP: &[&str] = &[
    "--package fairlock-cli --bin fairlock top::",
    "--package fairlock-cli --test commands top::",
];
const ON_WAITING: &[&str] = &["--package fairlock-cli --test commands waiting::"];

#[rustfmt::skip]
pub(super) const EDITS: &[Edit] = &[
    edit("CMD has a process group of its own", CHILD, "        command.process_group(0);\n", "", ON_SIGNALS),
    edit("CMD is terminated when its parent is killed", CHILD, "set_pdeathsig(Signal::SIGTERM)?;", "let _ = set_pdeathsig::<Signal>;", ON_SIGNALS).within("end_with_parent"),
    edit("a signal to the command goes to CMD", SUPERVISE, "signal = signals.next() => job.signal(signal.for_child(), report),", "_ = signals.next() => {}", ON_SIGNALS),
    edit("a signal that was ignored stays ignored", SIGNALS, "ignored & (1 << (ending - 1)) == 0", "ignored < u64::MAX", ON_SIGNALS),
    edit("a signal leaves no place in the queue", TAKING, "close(&locks).await;\n                Err(failure)", "Err(failure)", ON_SIGNALS).within("take"),
    edit("CMD begins with a whole lease", TAKING, "lease.remaining < lease.length / 2", "lease.remaining.is_zero()", ON_WAITING),
    edit("CMD is stopped before the end of a lease that is not renewed", LOSS, "lease.remaining <= kill_after", "lease.remaining.is_zero()", ON_LOSS),
    edit("a lease that is renewed stops nothing", LOSS, "is_near && lease.state == LeaseState::InDoubt", "is_near", ON_LOSS),
    edit("CMD is stopped before the longest hold is over", LOSS, "*left <= kill_after", "left.is_zero()", ON_LOSS),
    edit("CMD has no time to clean up when the lease is over already", LOSS, "=> Duration::ZERO,", "=> margin.kill_after,", ON_LOSS),
    edit("a process that CMD left behind is killed", SUPERVISE, "kill_rest(&job.child, kill_at, losses).await;", "let _ = kill_rest(&job.child, kill_at, losses);", ON_LOSS).within("run"),
    edit("CMD has the terminal", SUPERVISE, "    job.lend();\n", "", ON_TERMINAL),
    edit("the terminal is taken back", TERMINAL, "self.lent = self.set_foreground(self.own_group).is_err();", "self.lent = false;", ON_TERMINAL),
    edit("a process in the background may take the terminal back", TERMINAL, "SigmaskHow::SIG_BLOCK", "SigmaskHow::SIG_UNBLOCK", ON_TERMINAL),
    edit("a job that is stopped by the terminal stops as a whole", SUPERVISE, "Terminal::stop_own_group();", "let _ = Terminal::stop_own_group;", ON_TERMINAL).within("stopped"),
    edit("only the same lock is taken again within a run", NESTING, "parts.next()? == self.lock(name).as_str()", "!parts.next()?.is_empty()", ON_NESTING),
    edit("a log rotation does not ask a leader to end", SIGNALS, "self.has_come |= caught.asks_to_end()", "self.has_come = true", ON_SIGNALS),
    edit("a leader campaigns again after its command failed", LEAD, "if signals.has_come() || outcome == 0 {", "if true {", ON_LEAD),
    edit("a leader is done when its command succeeded", LEAD, "signals.has_come() || outcome == 0", "signals.has_come()", ON_LEAD),
    edit("a leader that was asked to end campaigns no more", LEAD, "signals.has_come() || outcome == 0", "outcome == 0", ON_LEAD),
    edit("a campaign goes on while no server answers", LEAD, "UNAVAILABLE | NOT_ACQUIRED | LOST)", "NOT_ACQUIRED | LOST)", ON_LEAD),
    edit("a campaign goes on after a lead that never began", LEAD, "UNAVAILABLE | NOT_ACQUIRED | LOST)", "UNAVAILABLE | NOT_ACQUIRED)", ON_LEAD),
    edit("an interrupt key ends a leader", SUPERVISE, "if exit.is_by_key() && has_terminal {", "if exit.is_by_key() && false {", ON_TERMINAL),
    edit("a leader whose command was interrupted elsewhere campaigns again", SUPERVISE, "if exit.is_by_key() && has_terminal {", "if exit.is_by_key() {", ON_LEAD),
    edit("an interrupt key ends the script that runs the command", TERMINAL, "    let _ = kill(Pid::from_raw(0), Signal::SIGINT);\n", "", ON_TERMINAL),
    edit("a command that was interrupted ends by that signal", MAIN, "signal == Some(Caught::INTERRUPT)", "signal.is_none()", ON_TERMINAL),
    edit("a leader refuses what has no meaning for it", LEAD, "lead.meaningless()", "lead.meaningless().filter(|_| false)", ON_LEAD),
    edit("a process that does not lead says so", HTTP, ".filter(|lead| lead.check().is_ok())?", "?", ON_LEAD),
    edit("clients of a leader leave file descriptors to its work", HTTP, "            drop(place);\n", "", ON_LEAD),
    edit("a client of a leader has one answer", HTTP, "            .keep_alive(false)\n", "", ON_LEAD),
    edit("a leader answers at addresses of both families", HTTP, "set_only_v6(false)", "set_only_v6(true)", ON_LEAD),
    edit("more clients of a leader wait", HTTP, "const MOST_CLIENTS: usize = 64;", "const MOST_CLIENTS: usize = 1 << 20;", ON_LEAD),
    edit("health is that of the last look", HTTP, "Err(error) => (StatusCode::SERVICE_UNAVAILABLE,", "Err(error) => (StatusCode::OK,", ON_LEAD),
    edit("a look that takes long is told of", CONNECTION, "match timeout(late, &mut answer).await {", "match timeout(late * 100, &mut answer).await {", ON_LEAD),
    edit("only a lock that is held is called busy", TAKING, " if ttl.is_zero() => format!", " if ttl.is_zero() && false => format!", ON_WAITING),
    edit("a lock of the command line is kept", SUPERVISE, "    grants.iter().for_each(Grant::begin_work);\n", "", ON_HOLD),
    edit("a fence that cannot be written keeps no lock", HOLD, "            held.end_work_undone();\n", "", ON_HOLD),
    edit("no lease of a quorum is longer than its longest", CONNECTION, "longest_lease.unwrap_or(DEFAULT_LEASE).min(DEFAULT_LEASE)", "DEFAULT_LEASE", ON_SETTINGS),
    edit("what is wrong is refused before a server is asked", TAKING, "place.check(kept).await?;", "drop(kept);", ON_SETTINGS).within("take"),
    edit("a command that is denied is a missing right", RIGHTS, "(of_command, of_key, of_channel) = (Right::Denied(text), None, None)", "(of_key, of_channel) = (None, None)", ON_CHECK),
    edit("keys that are denied are no denied command", RIGHTS, "text.contains(\"permissions to access\")", "text.is_empty()", ON_CHECK),
    edit("what is denied once is denied", RIGHTS, "    if *known == Right::Granted {", "    if true {", ON_CHECK),
    edit("a right that can be spared is only warned of", RIGHTS, "find(|(spared, _)| *spared == right)", "find(|_| false)", ON_CHECK),
    edit("trying rights sets no field", RIGHTS, "HSET $lock without a value", "HSET $lock without value", ON_CHECK),
    edit("trying rights loads no script", RIGHTS, "SCRIPT LOAD )", "SCRIPT LOAD return", ON_CHECK),
    edit("rights of a cluster are tried there", RIGHTS, "(IN_A_CLUSTER, in_cluster)", "(IN_A_CLUSTER, false)", ON_CHECK),
    edit("a server that takes no writes is told of", RIGHTS, "self.unwilling.get_or_insert(error.to_string());", "drop(error);", ON_CHECK),
    edit("a server that stops answering is told of", RIGHTS, "tried.unwilling.get_or_insert(why.to_string());", "drop(why);", ON_CHECK),
    edit("a check refuses a clock that was never set", STATE, "if theirs < UNSET {", "if false {", ON_CHECK),
    edit("too few replicas are told of", STATE, "if connected < wanted {", "if false {", ON_CHECK),
    edit("connections that were never closed are not warned of", STATE, "closed.filter(|closed| *closed > 0)", "closed.filter(|_| true)", &["--lib diagnosis"]),
    edit("a server that is too old is refused", STATE, "if known < OLDEST {", "if false {", &["--lib diagnosis"]),
    edit("durable servers must have each write on disk", STATE, "if durable && !keeps_all {", "if false {", ON_CHECK),
    edit("warnings count only if asked", CHECK, "Some(Verdict::Warning) if strict", "Some(Verdict::Warning)", &["--package fairlock-cli --bin fairlock check::"]),
    edit("a terminal that takes nothing holds up nothing", OUTPUT, "send(Order::Write(sink, text));", "drop(put(&sink, &text));", ON_TERMINAL).within("write"),
    edit("the end does not wait for ever for a reader", OUTPUT, "written.recv_timeout(PATIENCE)", "written.recv()", ON_TERMINAL),
    edit("what was said is written before the end", MAIN, "output::finish();\n    // For", "// For", ON_SETTINGS).within("main"),
    edit("the terminal is given back by top", TTY, "    give_back();\n    }", "}", ON_TOP).within("drop"),
    edit("a panic gives the terminal back", TTY, "give_back();\n            print(bug);", "print(bug);", ON_TOP).within("take"),
    edit("top says that nobody answers", TOP, "since > interval + PATIENCE", "since > Duration::MAX / 2", ON_TOP),
    edit("top ends if it is refused", TOP, "if look.rows.is_empty() && !error.is_transient()", "if false && error.is_transient()", ON_TOP),
    edit("top keeps the locks that it has seen", TOP, "Some(last) if look.rows.is_empty() => error = Some(last),", "Some(last) if false => error = Some(last),", ON_TOP),
    edit("top counts no change at the first look", BOARD, "self.fence.is_some() && fence > self.fence", "fence > self.fence", ON_TOP),
    edit("top counts no change when the last of several holders goes", BOARD, "fence > self.fence", "fence != self.fence", ON_TOP),
    edit("top shows no control characters", SCREEN, "shortened(&printable(&row.name), name)", "shortened(&row.name, name)", ON_TOP),
    edit("no control characters are shown", REPORT, "if c.is_control()", "if c == '\\0'", ON_LOOK),
    edit("a wrong pattern is refused before a server is asked", LOOK, "    place.check_pattern(&list.pattern).await?;\n", "", ON_LOOK),
    edit("a watch does not ask without a pause", LOOK, "    spans::check(\"--interval\", watch.interval, MIN_INTERVAL)?;\n", "", ON_LOOK),
    edit("a watch tells that a lock is kept", LOOK, "holder.writes, holder.kept)", "holder.writes, false)", ON_LOOK),
    edit("a watch of the command line tells of no other part of many holders", LOOK, "None => !are_all_listed,", "None => false,", &["--package fairlock-cli --bin fairlock look::"]),
    edit("help that cannot be written is no success", MAIN, "error.print().and_then(|()| stdout().flush())", "error.print().or(Ok::<_, std::io::Error>(()))", &["--package fairlock-cli --test commands generated::"]),
    edit("a script that asks is told of as much as a run would take", KIND, "holder.permits >= self.permits.unwrap_or(1)", "holder.permits >= 1", ON_PERMITS),
    edit("what has no owner is taken without one", NESTING, "kind == Kind::Lock && !place.is_quorum()", "!place.is_quorum()", ON_PERMITS),
    edit("a fence of two kinds is refused", LOOK, ".count() > 1", ".count() > 3", ON_PERMITS),
    edit("of a name the kinds in use are shown", LOOK, "None => !told.is_free() || ", "None => true || ", ON_PERMITS),
    edit("several holders are shown below", REPORT, "    if in_use(kind, status).is_none() {", "    if true {", ON_PERMITS),
    edit("the end of an empty stdin does not end a hold", HOLD, "kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket())", "kind.is_ok()", ON_HOLD),
    edit("a command that cannot be started keeps no lock taken", TAKING, "        let since = Instant::now();\n", "        let since = Instant::now();\n        let _ = guard.at_least(at_least);\n", ON_HOLD),
];
