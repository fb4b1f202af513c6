//! Signals to processes that the tests started.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Kills the process. It is no error if the process is already gone.
pub(crate) fn kill(pid: u32) {
    let _ = kill_process(as_pid(pid), Signal::KILL);
}

/// Stops the process, and returns when it has stopped.
pub(crate) fn stop(pid: u32) {
    kill_process(as_pid(pid), Signal::STOP).expect("a process to stop");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) && !is_stopped(pid) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lets a stopped process continue.
pub(crate) fn cont(pid: u32) {
    kill_process(as_pid(pid), Signal::CONT).expect("a process to continue");
}

fn as_pid(pid: u32) -> Pid {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process id")
}

/// The state is the first letter after the parenthesis that closes the name: proc(5). Without `/proc` the
/// signal is assumed to have worked.
fn is_stopped(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')),
        Err(_) => true,
    }
}
