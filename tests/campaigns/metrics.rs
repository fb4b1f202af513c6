//! The metrics under a real Prometheus. Processes contend for locks on a server and serve their metrics;
//! Prometheus scrapes them, and evaluates the rules of `docs/alerts.yml`. In the end the counters that it has
//! must be those of the processes, and every expression of the dashboard must have an answer.
//!
//! `FAIRLOCK_METRICS_SECONDS` sets the duration, and `FAIRLOCK_PROMETHEUS` the program. `scripts/campaign
//! metrics` gets it and sets both. Without a Prometheus, nothing is checked, and the test says so.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fairlock::{LockManager, Stats};
use fairlock_testkit::{Process, Server, TempDir, eventually, free_port, role};
use metrics_exporter_prometheus::PrometheusBuilder;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::contention::setting;

const PROCESSES: u64 = 3;
const SOON: Duration = Duration::from_secs(30);
const BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0,
];

/// What a process counts itself, and the expression for the same.
const COUNTS: [(&str, &str); 8] = [
    ("calls", "sum(fairlock_acquire_duration_seconds_count)"),
    (
        "acquired",
        "sum(fairlock_acquire_duration_seconds_count{outcome=\"acquired\"})",
    ),
    (
        "handed over",
        "sum(fairlock_acquire_duration_seconds_count{how=\"handed_over\"})",
    ),
    (
        "timed out",
        "sum(fairlock_acquire_duration_seconds_count{outcome=\"timeout\"})",
    ),
    (
        "cancelled",
        "sum(fairlock_acquire_duration_seconds_count{outcome=\"cancelled\"})",
    ),
    ("holds ended", "sum(fairlock_hold_duration_seconds_count)"),
    ("lost", "sum(fairlock_lease_lost_total)"),
    (
        "waiting and held",
        "sum(fairlock_waiters) + sum(fairlock_guards_held)",
    ),
];

fn counts(stats: &Stats, calls: u64, guards: u64) -> [u64; COUNTS.len()] {
    let levels = (stats.waiting + stats.held) as u64;
    [
        calls,
        guards,
        stats.handed_over,
        stats.timed_out,
        stats.cancelled,
        guards,
        stats.lost_expired + stats.lost_taken + stats.lost_max_hold,
        levels,
    ]
}

/// A task that takes locks of three groups in its own ways. Returns how many calls it made, and how many
/// guards it had.
async fn contend(locks: LockManager, seed: u64, until: Instant) -> (u64, u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let (mut calls, mut guards) = (0, 0);
    while Instant::now() < until {
        calls += 1;
        let ms = Duration::from_millis(random.random_range(0..20));
        let (lock, held_for) = match seed % 8 {
            // A long job, whose lease is renewed.
            0 => (locks.lock(format!("job:{seed}")), Duration::from_secs(11)),
            // A lease that is lost now and then.
            1 => (
                locks
                    .lock("report")
                    .lease(Duration::from_secs(1))
                    .auto_renew(false),
                ms * random.random_range(1..60),
            ),
            n => (locks.lock(format!("invoice:{}", n % 2)), ms),
        };
        let guard = match random.random_range(0..8) {
            0 => lock.try_acquire().await.ok(),
            1 => lock.acquire_timeout(20 * ms).await.ok(),
            2 => timeout(20 * ms, lock.acquire()).await.ok().and_then(Result::ok),
            _ => lock.acquire().await.ok(),
        };
        let Some(guard) = guard else { continue };
        guards += 1;
        sleep(held_for.min(until.saturating_duration_since(Instant::now()).max(ms))).await;
        match random.random_range(0..4) {
            0 => drop(guard),
            // A lost lease is part of the load.
            _ => drop(guard.release().await),
        }
    }
    (calls, guards)
}

/// Contends for some seconds, and tells what it has counted. Serves its metrics until it is told to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a role for other tests, run in its own process"]
async fn exporter_part() {
    let Some(mut role) = role() else { return };
    let port = u16::try_from(role.number("port")).unwrap();
    PrometheusBuilder::new()
        .set_buckets(&BUCKETS)
        .unwrap()
        .with_http_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .install()
        .unwrap();
    let locks = LockManager::connect(&role.arg("url")).await.unwrap();
    let until = Instant::now() + Duration::from_secs(role.number("seconds"));
    let mut tasks = JoinSet::new();
    for task in 0..24 {
        tasks.spawn(contend(locks.clone(), 100 * role.number("seed") + task, until));
    }
    let (calls, guards): (Vec<u64>, Vec<u64>) = tasks.join_all().await.into_iter().unzip();
    let rests = || locks.stats().held + locks.stats().waiting + locks.stats().unconfirmed == 0;
    eventually("all is confirmed", SOON, async || rests()).await;
    let counts = counts(&locks.stats(), calls.iter().sum(), guards.iter().sum());
    role.say(&counts.map(|count| count.to_string()).join(" "));
    assert_eq!(role.heard().await, "end");
}

/// A Prometheus that scrapes these ports once a second. It ends with this value.
struct Prometheus {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(program: &Path, targets: &[u16]) -> Prometheus {
        let dir = TempDir::create();
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/alerts.yml");
        let targets: Vec<_> = targets.iter().map(|port| format!("'127.0.0.1:{port}'")).collect();
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: ['{}']\n\
             scrape_configs: [{{job_name: locks, static_configs: [{{targets: [{}]}}]}}]\n",
            rules.display(),
            targets.join(", ")
        );
        let file = dir.path().join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let port = free_port();
        let child = Command::new(program)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=error")
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        Prometheus {
            child,
            port,
            _dir: dir,
        }
    }

    /// Asks the HTTP API. `None` if it does not answer.
    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        stream.set_read_timeout(Some(SOON)).ok()?;
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let body = answer.split_once("\r\n\r\n")?.1;
        serde_json::from_str(body).ok()
    }

    /// What an expression comes to now: the labels of each series, and its value.
    fn query(&self, expression: &str) -> Vec<(String, f64)> {
        let mut encoded = String::new();
        for byte in expression.bytes() {
            write!(encoded, "%{byte:02X}").unwrap();
        }
        let answer = self.get(&format!("query?query={encoded}"));
        let answer = answer.unwrap_or_else(|| panic!("no answer to {expression}"));
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let series = answer["data"]["result"].as_array().unwrap();
        let read = |series: &Value| {
            let labels = series["metric"].as_object().unwrap();
            let labels = labels.values().map(|value| value.as_str().unwrap());
            let value = series["value"][1].as_str().unwrap().parse().unwrap();
            (labels.collect::<Vec<_>>().join(" "), value)
        };
        series.iter().map(read).collect()
    }
}

/// `FAIRLOCK_PROMETHEUS`, or what `scripts/install-prometheus` has unpacked.
fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FAIRLOCK_PROMETHEUS") {
        return Some(named.into());
    }
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/prometheus/usr/bin/prometheus");
    unpacked.exists().then_some(unpacked)
}

/// The panels of the dashboard, with their expressions.
fn dashboard() -> Vec<(String, String)> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/grafana.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut expressions = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            expressions.push((text(&panel["title"]), text(&target["expr"])));
        }
    }
    expressions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_counts_what_the_processes_count() {
    let Some(program) = program() else {
        eprintln!("NOT CHECKED: there is no Prometheus. scripts/install-prometheus prometheus gets it.");
        return;
    };
    let seconds = setting("FAIRLOCK_METRICS_SECONDS").unwrap_or(5);
    let server = Server::start().await;
    let ports: Vec<_> = (0..PROCESSES).map(|_| free_port()).collect();
    let start = |(seed, port): (usize, &u16)| {
        let args = [
            ("url", server.url()),
            ("port", port.to_string()),
            ("seed", seed.to_string()),
            ("seconds", seconds.to_string()),
        ];
        let args: Vec<_> = args.iter().map(|(key, value)| (*key, value.as_str())).collect();
        Process::spawn("metrics::exporter_part", &args)
    };
    let mut processes: Vec<_> = ports.iter().enumerate().map(start).collect();
    let prometheus = Prometheus::start(&program, &ports);
    let scraped = || {
        let up = prometheus.get("query?query=sum(up)")?;
        up["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    };
    eventually("all are scraped", SOON, async || scraped() == Some(PROCESSES)).await;
    // Connections break twice: an increase is seen only once there is a count.
    for _ in 0..2 {
        sleep(Duration::from_secs(seconds) / 4).await;
        server.kill_clients().await;
    }

    let mut own = [0; COUNTS.len()];
    for process in &mut processes {
        let line = process.line_within(Duration::from_secs(seconds) + 2 * SOON).await;
        let line = line.expect("its counts");
        let counts = line.split(' ').map(|count| count.parse::<u64>().unwrap());
        own.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let value = |expression: &str| {
        prometheus
            .query(expression)
            .first()
            .map_or(0.0, |(_, value)| *value)
    };
    let agree = || (COUNTS.iter().zip(own)).all(|((_, expression), own)| value(expression) == own as f64);
    // The last scrape may be a second old.
    let deadline = Instant::now() + SOON;
    while !agree() && Instant::now() < deadline {
        sleep(Duration::from_millis(500)).await;
    }
    let mut table = String::from("| counted | by the processes | by Prometheus |\n|---|---|---|\n");
    for ((name, expression), own) in COUNTS.iter().zip(own) {
        writeln!(table, "| {name} | {own} | {} |", value(expression)).unwrap();
    }
    println!("{table}");
    assert!(agree(), "\n{table}");
    assert!(own[1] > 100 && own[2] > 10, "\n{table}");

    let span = format!("[{}s]", seconds + 10);
    let mut table = String::from("| panel | series | value |\n|---|---|---|\n");
    for (panel, expression) in dashboard() {
        let expression = expression
            .replace("$group", ".*")
            .replace("$namespace", ".*")
            .replace("$job", ".*")
            .replace("[$__rate_interval]", &span);
        // Leases are renewed after ten seconds, and a short run may end with the first connections that
        // break. Calls need not fail. There is no quorum.
        let is_late = ["margin", "reconnects"]
            .iter()
            .any(|name| expression.contains(name));
        let is_of_quorum = expression.contains("votes");
        let may_be_empty = is_late && seconds < 20 || is_of_quorum || panel.starts_with("Failed");
        let series = prometheus.query(&expression);
        assert!(may_be_empty || !series.is_empty(), "{panel}: {expression}");
        let unit = if expression.contains("quantile") { " s" } else { "" };
        let unit = if expression.contains("(rate(") && unit.is_empty() {
            "/s"
        } else {
            unit
        };
        for (labels, value) in series {
            let part = ["0.5,", "0.99,", "0.01,"]
                .iter()
                .find(|part| expression.contains(**part));
            let part = part.map_or(String::new(), |part| format!(", {}", part.trim_end_matches(',')));
            writeln!(table, "| {panel}{part} | {labels} | {value:.4}{unit} |").unwrap();
        }
    }
    println!("{table}");
    let alerts = prometheus.get("alerts").expect("an answer");
    for alert in alerts["data"]["alerts"].as_array().unwrap() {
        println!("{}: {}", alert["state"], alert["annotations"]["summary"]);
    }
    let fired = alerts["data"]["alerts"].to_string().contains("FairlockLeaseLost");
    assert_eq!(fired, own[6] > 0, "{alerts}");
    for process in &mut processes {
        process.tell("end");
    }
}
