//! A place of a round in which client processes contend, one after the other, behind networks of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fairlock_testkit::{Process, Proxy};
use tokio::sync::Mutex;

use super::record;
use super::verdict::History;
use super::{Load, client};

/// The longest time after the last fault until all tasks have had their turn and stopped.
const REST: Duration = Duration::from_secs(30);

/// A client process, with a network of its own to each server.
#[derive(Debug)]
pub(crate) struct Contender {
    process: Option<Process>,
    pub(crate) proxies: Vec<Proxy>,
    load: Load,
    resource_port: u16,
    /// The path of the records of its processes, without the number of the start.
    records: PathBuf,
    place: usize,
    starts: usize,
    seed: u64,
}

/// How often something rare happened, as far as the processes that lived to the end counted it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rare {
    pub(crate) raised: u64,
    pub(crate) yielded: u64,
    pub(crate) repaired: u64,
}

impl Contender {
    /// Starts the process of this place, which uses all servers.
    pub(crate) fn start(
        load: Load,
        servers: &[u16],
        resource_port: u16,
        dir: &Path,
        place: usize,
        seed: u64,
    ) -> Contender {
        let mut contender = Contender {
            process: None,
            proxies: servers.iter().map(|port| Proxy::start(*port)).collect(),
            load,
            resource_port,
            records: dir.join(format!("process-{place}")),
            place,
            starts: 0,
            seed: seed ^ (place as u64) << 48,
        };
        contender.replace();
        contender
    }

    /// Starts another process in place of a dead one.
    pub(crate) fn replace(&mut self) {
        self.starts += 1;
        let seed = self.seed.wrapping_add(self.starts as u64);
        let urls: Vec<_> = self.proxies.iter().map(Proxy::url).collect();
        let record = self.record(self.starts);
        self.process = Some(client::start(
            &self.load,
            &urls,
            self.resource_port,
            seed,
            &record,
        ));
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("a process")
    }

    /// The number of the process that runs now. All processes of a round have different numbers.
    pub(crate) fn number(&self) -> usize {
        self.number_of(self.starts)
    }

    fn number_of(&self, start: usize) -> usize {
        self.place * 1_000 + start
    }

    fn record(&self, start: usize) -> String {
        format!("{}-{start}", self.records.display())
    }

    /// Reads the records of all processes of this place. A process that was killed at once has none.
    pub(crate) fn read(&self, history: &mut History) {
        for start in 1..=self.starts {
            let path = self.record(start);
            if let Some((waits, disturbances)) = record::read(&path, self.number_of(start)) {
                history.waits.extend(waits);
                history.disturbances.extend(disturbances);
            }
        }
    }

    /// The next line of the process, unless the process ends or takes too long.
    async fn says(&mut self) -> String {
        let place = self.place;
        let said = self.process().line_within(REST).await;
        said.unwrap_or_else(|| format!("process {place} sent no line for {REST:?}"))
    }
}

/// Makes all processes finish their work and close. Returns the violations that this shows.
pub(crate) async fn rest(contenders: &[Arc<Mutex<Contender>>]) -> (Vec<String>, Rare) {
    let (mut violations, mut rare) = (Vec::new(), Rare::default());
    for (order, expected) in [
        ("stop", &["idle 0 0 0"][..]),
        ("close", &["closed", "tasks 0"][..]),
    ] {
        for contender in contenders {
            contender.lock().await.process().tell(order);
        }
        for contender in contenders {
            let mut contender = contender.lock().await;
            for line in expected {
                let said = contender.says().await;
                if said != *line {
                    violations.push(format!("after {order}, {line:?} was expected, not {said:?}"));
                }
            }
            if order == "stop" {
                rare.add(&contender.says().await);
            }
        }
    }
    (violations, rare)
}

impl Rare {
    /// Adds what a process counted: three numbers.
    fn add(&mut self, said: &str) {
        let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        if let [raised, yielded, repaired] = numbers[..] {
            self.raised += raised;
            self.yielded += yielded;
            self.repaired += repaired;
        }
    }
}
