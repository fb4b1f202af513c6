//! Many locks over the masters of a cluster. Each task acquires and releases a lock of its own, and no task
//! waits for another. So this shows what the servers and the clients can do, and what more masters add.

use std::fmt::Write;
use std::time::Duration;

use fairlock_benches::Outcome;
use fairlock_benches::analysis::granted;

use crate::args::CompareArgs;
use crate::cost::Cost;
use crate::place::Place;
use crate::round::{Stage, Task};
use crate::strategy::Strategy;
use crate::workload::Load;

/// One round with this number of masters, or several such rounds together.
#[derive(Debug, Default)]
pub(crate) struct Round {
    masters: u32,
    round: u32,
    pairs: usize,
    /// The measured time.
    window: Duration,
    /// CPU time of all masters within it, and of the busiest one.
    servers: Duration,
    busiest: Duration,
    /// What client processes complained about.
    pub(crate) errors: Vec<String>,
}

/// The tasks, of which each has a lock, and their processes.
fn load(args: &CompareArgs) -> Load {
    args.loads()[0]
}

/// Runs all rounds with this number of locks.
pub(crate) async fn run(args: &CompareArgs, locks: u32) -> Outcome<Vec<Round>> {
    let mut places = Vec::new();
    for &masters in &args.masters {
        places.push((masters, Place::of_masters(masters).await?));
    }
    let count = args.rounds as usize * places.len();
    let stage = Stage::new(args, std::iter::repeat_n((Strategy::Fairlock, locks), count))?;
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        for (masters, place) in &places {
            stage.announce(format!("{locks} locks, masters: {masters}"));
            let task = Task {
                place,
                strategy: Strategy::Fairlock,
                load: load(args),
                apart: true,
                label: format!("masters-{masters}-{round}"),
            };
            let played = stage.play(&task).await?;
            let window_ns = u64::try_from(played.end_ns - played.begin_ns).unwrap_or_default();
            rounds.push(Round {
                masters: *masters,
                round,
                pairs: granted(&played.history, played.begin_ns, played.end_ns),
                window: Duration::from_nanos(window_ns),
                servers: Cost::sum(&played.spent).cpu,
                busiest: played.spent.iter().map(|cost| cost.cpu).max().unwrap_or_default(),
                errors: played.errors,
            });
        }
    }
    Ok(rounds)
}

/// The table, and the meaning of its columns.
pub(crate) fn table(args: &CompareArgs, locks: u32, rounds: &[Round]) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut out = format!(
        "\ncluster of masters without replicas, {locks} locks of a task each, {} client processes, held {} µs, {} × {} s \
         after {} s of warm-up, {cores} cores\n\n",
        load(args).processes.min(locks),
        load(args).hold_us,
        args.rounds,
        args.seconds,
        args.warmup,
    );
    let mut row = |cells: [String; 7]| {
        for cell in cells {
            let _ = write!(out, "{cell:>10} ");
        }
        out.push('\n');
    };
    let head = [
        "masters",
        "pairs/s",
        "growth",
        "CPU µs",
        "busiest %",
        "bound/s",
        "growth",
    ];
    row(head.map(str::to_owned));
    let (mut first, mut first_bound) = (None, None);
    for &masters in &args.masters {
        let line = pooled(masters, rounds);
        let window_s = line.window.as_secs_f64();
        let pairs_per_s = line.pairs as f64 / window_s;
        let busiest = line.busiest.as_secs_f64() / window_s;
        let bound = pairs_per_s / busiest;
        let growth = pairs_per_s / *first.get_or_insert(pairs_per_s);
        let bound_growth = bound / *first_bound.get_or_insert(bound);
        row([
            masters.to_string(),
            format!("{pairs_per_s:.0}"),
            format!("{growth:.2}"),
            format!("{:.0}", line.servers.as_secs_f64() * 1e6 / line.pairs as f64),
            format!("{:.0}", busiest * 100.0),
            format!("{bound:.0}"),
            format!("{bound_growth:.2}"),
        ]);
    }
    out.push_str(
        "
pairs/s    an acquire and a release each, all tasks together
growth     relative to the first line
CPU µs     of the masters' processes, per pair
busiest %  of one core that the busiest master used: near 100 the masters are the limit, and more of them help
bound/s    computed: pairs/s if the busiest master had a whole core, at the CPU time per pair of this run
",
    );
    let _ = writeln!(
        out,
        "\nMasters and clients share {cores} cores: only a master with a core of its own shows what it adds."
    );
    out
}

fn pooled(masters: u32, rounds: &[Round]) -> Round {
    let mut sum = Round::default();
    for round in rounds.iter().filter(|round| round.masters == masters) {
        sum.pairs += round.pairs;
        sum.window += round.window;
        sum.servers += round.servers;
        sum.busiest += round.busiest;
    }
    sum
}

/// One line per round.
pub(crate) fn csv(args: &CompareArgs, locks: u32, rounds: &[Round]) -> String {
    let mut out = String::from(
        "masters,locks,round,processes,hold_us,seconds,pairs,server_cpu_ns,busiest_cpu_ns,errors\n",
    );
    for round in rounds {
        let _ = writeln!(
            out,
            "{},{locks},{},{},{},{},{},{},{},{}",
            round.masters,
            round.round,
            load(args).processes.min(locks),
            load(args).hold_us,
            args.seconds,
            round.pairs,
            round.servers.as_nanos(),
            round.busiest.as_nanos(),
            round.errors.len()
        );
    }
    out
}
