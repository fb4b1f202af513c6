//! The metrics, as Prometheus sees them: the page, the dashboard and the rules name what the code emits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use fairlock::{Error, LockManager, MemoryStore, Owner, Quorum};
use fairlock_testkit::{Server, eventually};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;

use super::root;

const SOON: Duration = Duration::from_secs(20);

/// A metric: its kind, and its labels with their values.
#[derive(Debug, Default, PartialEq)]
struct Metric {
    kind: String,
    is_described: bool,
    labels: BTreeMap<String, BTreeSet<String>>,
}

type Metrics = BTreeMap<String, Metric>;

/// The name of a metric, without the parts of a histogram.
fn base(name: &str) -> &str {
    let parts = ["_bucket", "_sum", "_count"];
    let base = parts.iter().find_map(|part| name.strip_suffix(part));
    base.unwrap_or(name)
}

/// Reads the text that Prometheus scrapes.
fn parse(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["#", "HELP", name, ..] => metrics.entry(name.to_owned()).or_default().is_described = true,
            ["#", "TYPE", name, kind] => {
                kind.clone_into(&mut metrics.entry(name.to_owned()).or_default().kind)
            }
            _ => {}
        }
        let sample = line.split_once('#').map_or(line, |(before, _)| before);
        let Some((name, _)) = sample.split_once(['{', ' ']) else {
            continue;
        };
        let metric = metrics.entry(base(name).to_owned()).or_default();
        let labels = sample.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
        for label in labels.iter().flat_map(|(labels, _)| labels.split("\",")) {
            let (name, value) = label.split_once("=\"").unwrap();
            if name != "le" {
                let value = value.trim_end_matches('"').to_owned();
                metric.labels.entry(name.to_owned()).or_default().insert(value);
            }
        }
    }
    metrics
}

/// Uses locks of this manager in all the ways that are counted.
async fn use_locks(locks: &LockManager) {
    let lock = locks.lock("invoice:42");
    // Free, handed over, released, dropped.
    let guard = lock.acquire().await.unwrap();
    let next = tokio::spawn(lock.acquire());
    eventually("it waits", SOON, async || {
        lock.status().await.unwrap().waiting == 1
    })
    .await;
    assert!(matches!(lock.try_acquire().await, Err(Error::Busy { .. })));
    let busy = lock.acquire_timeout(Duration::from_millis(100)).await;
    assert!(matches!(busy, Err(Error::Timeout { .. })), "{busy:?}");
    drop(tokio::time::timeout(Duration::from_millis(5), lock.acquire()).await);
    guard.release().await.unwrap();
    drop(next.await.unwrap().unwrap());
    // Turns, by local hand-off.
    let turns = locks.lock("counter").local_handoffs(16);
    let with = (0..4).map(|_| turns.with(async |_| tokio::task::yield_now().await));
    for turn in futures_util::future::join_all(with).await {
        turn.unwrap();
    }
    // Retained, from the second grant on.
    let stays = locks.lock("stays").retain(Duration::from_secs(1));
    while locks.stats().retained == 0 {
        stays.acquire().await.unwrap().release().await.unwrap();
        tokio::task::yield_now().await;
    }
    // Lost for each reason; the one that expires is then found free by a poll.
    let short = Duration::from_millis(300);
    let taken = locks.lock("taken").acquire().await.unwrap();
    locks.lock("taken").force_release(taken.fence()).await.unwrap();
    assert!(matches!(taken.release().await, Err(Error::Lost(_))));
    let limited = locks.lock("limited").max_hold(short).acquire().await.unwrap();
    let expired = locks
        .lock("expired")
        .lease(short)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    drop(locks.lock("expired").acquire().await.unwrap());
    limited.lost().await;
    expired.lost().await;
    let both = async || (locks.stats().lost_expired, locks.stats().lost_max_hold) == (1, 1);
    eventually("both are lost", SOON, both).await;
    // A renewal, and an error.
    let renewed = locks.lock("renewed").lease(short).acquire().await.unwrap();
    let before = locks.stats().renewals;
    eventually("renewed", SOON, async || locks.stats().renewals > before + 1).await;
    drop(renewed);
    let full = locks.lock("full").owner(&Owner::new());
    let mut holds = Vec::new();
    for _ in 0..256 {
        holds.push(full.acquire().await.unwrap());
    }
    assert!(matches!(full.acquire().await, Err(Error::TooManyHolds { .. })));
}

/// Uses a lock of a quorum. What it emits on servers is no different.
async fn use_a_quorum() {
    let servers = [(); 3].map(|()| MemoryStore::new());
    let quorum = Quorum::in_memory(&servers);
    let locks = LockManager::builder().connect_quorum(quorum).await.unwrap();
    drop(locks.lock("invoice:42").acquire().await.unwrap());
}

/// What locks on a server emit, or those in memory.
fn emitted(on_a_server: bool) -> Metrics {
    let recorder = PrometheusBuilder::new()
        .set_buckets(&[1.0])
        .unwrap()
        .build_recorder();
    ::metrics::with_local_recorder(&recorder, || {
        // On one thread, since the recorder is that of this thread.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            use_a_quorum().await;
            if !on_a_server {
                return use_locks(&LockManager::in_memory()).await;
            }
            let server = Server::start().await;
            let locks = LockManager::connect(&server.url()).await.unwrap();
            use_locks(&locks).await;
            server.kill_clients().await;
            let reconnected = async || locks.stats().reconnects > 0;
            eventually("another connection", SOON, reconnected).await;
        });
    });
    parse(&recorder.handle().render())
}

/// What the page says: the rows of its table.
fn documented() -> Metrics {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `fairlock_"));
    let words = |text: &str| {
        let words = text.split('`').skip(1).step_by(2);
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').collect();
        let [_, name, kind, labels, ..] = cells[..] else {
            panic!("{row}")
        };
        let labels = labels.split(';').map(words).filter(|words| !words.is_empty());
        let labels = labels.map(|mut words| (words.remove(0), words.into_iter().collect()));
        let kind = kind.split(',').next().unwrap().trim().to_owned();
        let metric = Metric {
            kind,
            is_described: true,
            labels: labels.collect(),
        };
        (words(name).remove(0), metric)
    })
    .collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

#[test]
fn the_page_lists_what_locks_emit_with_kinds_labels_and_values() {
    let (mut emitted, documented) = (emitted(true), documented());
    // What only other set-ups emit.
    let rare = [
        ("fairlock_acquire_duration_seconds", "outcome", "unavailable"),
        ("fairlock_server_call_duration_seconds", "operation", "confirm"),
        ("fairlock_server_call_duration_seconds", "outcome", "unknown"),
        ("fairlock_server_call_duration_seconds", "outcome", "not_executed"),
        ("fairlock_server_call_duration_seconds", "outcome", "refused"),
        ("fairlock_server_call_duration_seconds", "outcome", "closed"),
        ("fairlock_reconnects_total", "connection", "replication"),
    ];
    for (metric, label, value) in rare {
        let labels = &mut emitted.get_mut(metric).unwrap().labels;
        labels.get_mut(label).unwrap().insert(value.to_owned());
    }
    for metric in emitted.values_mut() {
        // Any value is possible.
        for any in ["group", "server", "version"] {
            if let Some(values) = metric.labels.get_mut(any) {
                values.clear();
            }
        }
    }
    assert_eq!(
        emitted.keys().collect::<Vec<_>>(),
        documented.keys().collect::<Vec<_>>()
    );
    for (name, metric) in emitted {
        assert_eq!(metric, documented[&name], "{name}");
    }
}

#[test]
fn locks_in_memory_emit_the_same_except_for_connections() {
    let names = |metrics: Metrics| metrics.into_keys().collect::<BTreeSet<_>>();
    let mut all = names(documented());
    all.remove("fairlock_reconnects_total");
    assert_eq!(names(emitted(false)), all);
}

/// The expressions of the dashboard, each with its legend.
fn dashboard() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("docs/grafana.json")).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            found.push((text(&target["expr"]), text(&target["legendFormat"])));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        found.push((text(&variable["query"]), String::new()));
    }
    found
}

/// The words of an expression, without what is quoted.
fn words(expression: &str) -> BTreeSet<&str> {
    let unquoted = expression.split('"').step_by(2);
    unquoted
        .flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .collect()
}

/// What follows `by (`, and the labels that `{…}` selects by, with their values.
fn labels(expression: &str) -> Vec<(&str, Option<&str>)> {
    let mut labels = Vec::new();
    for by in expression.split("by (").skip(1) {
        let by = by.split(')').next().unwrap();
        labels.extend(by.split(", ").map(|label| (label, None)));
    }
    for selector in expression.split('{').skip(1) {
        let selector = selector.split('}').next().unwrap();
        for part in selector.split(", ") {
            let (label, value) = part.split_once('"').unwrap();
            let value = value.trim_end_matches('"');
            let label = label.trim_end_matches(['=', '!', '~']);
            labels.push((label, Some(value).filter(|value| !value.starts_with('$'))));
        }
    }
    labels
}

/// Checks one expression against the page, and returns the metrics that it names.
fn check(expression: &str, documented: &Metrics) -> BTreeSet<String> {
    let named = words(expression)
        .into_iter()
        .filter(|word| word.starts_with("fairlock_"));
    let named: BTreeSet<_> = named.map(|name| base(name).to_owned()).collect();
    for name in &named {
        let metric = documented
            .get(name)
            .unwrap_or_else(|| panic!("no {name}: {expression}"));
        assert!(
            metric.kind != "histogram" || !expression.contains(&format!("{name}{{")),
            "{expression}"
        );
        for (label, value) in labels(expression) {
            // Those of Prometheus itself.
            if ["le", "instance", "job", "namespace"].contains(&label) {
                continue;
            }
            let values = metric.labels.get(label);
            let values = values.unwrap_or_else(|| panic!("{name} has no {label}: {expression}"));
            // Any group is possible.
            if let Some(value) = value.filter(|_| label != "group") {
                assert!(
                    values.contains(value),
                    "{name} has no {label}={value}: {expression}"
                );
            }
        }
    }
    named
}

#[test]
fn dashboard_and_rules_name_emitted_metrics_and_labels_and_leave_no_metric_out() {
    let documented = documented();
    let mut shown = BTreeSet::new();
    for (expression, legend) in dashboard() {
        shown.extend(check(&expression, &documented));
        for label in legend.split("{{").skip(1) {
            let label = label.split("}}").next().unwrap();
            let by = labels(&expression).into_iter().any(|(by, _)| by == label);
            assert!(by, "{legend}: {expression}");
        }
    }
    assert_eq!(
        shown,
        documented.keys().cloned().collect(),
        "the dashboard shows all"
    );
    let rules = read("docs/alerts.yml");
    // An expression is on the line of its key, or on those below it that are indented further.
    let expressions = rules.split("expr:").skip(1).map(|rest| {
        let lines = rest.lines().enumerate();
        let lines = lines.take_while(|(n, line)| *n == 0 || line.starts_with("          "));
        lines.map(|(_, line)| line).collect::<Vec<_>>().join(" ")
    });
    let expressions: Vec<_> = expressions.collect();
    assert_eq!(expressions.len(), 8);
    let page = read("docs/metrics.md");
    for expression in expressions {
        assert!(!check(&expression, &documented).is_empty(), "{expression}");
    }
    for alert in rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        assert!(
            page.contains(&format!("**{alert}**")),
            "the page says what to do about {alert}"
        );
    }
}

/// `FAIRLOCK_PROMTOOL`, or the one that `scripts/install-prometheus` has unpacked, or the one on the PATH.
fn promtool() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FAIRLOCK_PROMTOOL") {
        return Some(named.into());
    }
    let unpacked = root().join("target/prometheus/usr/bin/promtool");
    let candidates = [unpacked, PathBuf::from("promtool")];
    let runs = |program: &PathBuf| Command::new(program).arg("--version").output().is_ok();
    candidates.into_iter().find(runs)
}

#[test]
fn rules_are_valid_and_fire_when_they_should() {
    let Some(promtool) = promtool() else {
        eprintln!("NOT CHECKED: there is no promtool. scripts/install-prometheus gets it.");
        return;
    };
    for arguments in [
        ["check", "rules", "docs/alerts.yml"],
        ["test", "rules", "tests/face/alerts.yml"],
    ] {
        let output = Command::new(&promtool)
            .args(arguments)
            .current_dir(root())
            .output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", promtool.display()));
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}
