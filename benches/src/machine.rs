//! The machine that the figures come from.

/// Processor, cores and system, as far as the system reports them.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or_else(|_| "?".to_owned(), |n| n.to_string());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = format!("{} {}", std::env::consts::OS, kernel.trim());
    format!("{}, {cores} cores, {}", processor(), system.trim())
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or_else(
            || std::env::consts::ARCH.to_owned(),
            |(_, model)| model.trim().to_owned(),
        )
}
