//! What a server's INFO says about its work.

/// Commands that lock clients send. Scripts call other commands (HSET, ZADD, PUBLISH, …), and the server
/// counts those too. Clients neither send them nor wait for them.
const SENT: [&str; 13] = [
    "eval",
    "evalsha",
    "fcall",
    "set", // publish-then-compete takes its lock with it; no script here calls it
    "delifeq",
    "ping",
    "subscribe",
    "unsubscribe",
    "ssubscribe",
    "sunsubscribe",
    "script",
    "hello",
    "client",
];

/// Sums the calls of client commands in `INFO commandstats`.
pub fn commands_sent(commandstats: &str) -> u64 {
    let calls = |line: &str| {
        let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let command = name.split('|').next()?;
        let calls = fields.split(',').find_map(|field| field.strip_prefix("calls="))?;
        SENT.contains(&command).then(|| calls.parse::<u64>().ok())?
    };
    commandstats.lines().filter_map(calls).sum()
}

/// The CPU time of the server process in `INFO cpu`, user and system, in seconds.
pub fn cpu_seconds(cpu: &str) -> Option<f64> {
    let value = |key| field(cpu, key)?.parse::<f64>().ok();
    Some(value("used_cpu_user")? + value("used_cpu_sys")?)
}

/// The value of one line of INFO.
pub fn field<'a>(info: &'a str, key: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .map(str::trim_end)
}
