//! The memory of a process.

use crate::Outcome;

/// Memory of this process in RAM, in bytes.
pub fn own_memory() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("no VmRSS")?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}
