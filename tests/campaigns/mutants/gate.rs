//! Applies one edit after the other to a copy of the tree, and runs the tests.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{Edit, edits, root};

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// A test of this name failed.
    Killed(String),
    /// A test of this suite did not end.
    Endless(String),
    Survived,
    DoesNotCompile,
}

/// Who changes a line that an edit takes away must change the edit too.
#[test]
fn every_edit_applies() {
    let stale: Vec<String> = edits().filter_map(|edit| edit.check().err()).collect();
    assert!(stale.is_empty(), "edits that no longer apply: {stale:#?}");
}

#[test]
#[ignore = "takes an hour or two: scripts/campaign mutants"]
fn every_edit_is_killed_or_explained() {
    let began = Instant::now();
    every_edit_applies();
    let limit = number("MUTANTS_SECONDS").map(Duration::from_secs);
    let only = std::env::var("MUTANTS_ONLY").unwrap_or_default();
    let mut chosen: Vec<&Edit> = edits()
        .filter(|edit| {
            only.split(',')
                .any(|only| edit.rule.contains(only) || edit.file.contains(only))
        })
        .collect();
    if limit.is_some() {
        let seed = number("MUTANTS_SEED").unwrap_or(1);
        chosen.sort_by_key(|edit| {
            let mut hasher = DefaultHasher::new();
            (seed, edit.rule).hash(&mut hasher);
            hasher.finish()
        });
    }

    // A compiler and a test mostly keep one core busy.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let trees: Vec<Tree> = (0..cores.min(chosen.len())).map(Tree::new).collect();
    let suites: BTreeSet<&str> = chosen.iter().flat_map(|edit| edit.tests).copied().collect();
    let learnt = Mutex::new(BTreeMap::new());
    share(&trees, &Vec::from_iter(suites), |tree, _, suite| {
        let limit = tree.learn(suite);
        learnt.lock().unwrap().insert(suite, limit);
    });
    let limits = learnt.into_inner().unwrap();

    let rows = Mutex::new(BTreeMap::new());
    share(&trees, &chosen, |tree, number, edit| {
        if limit.is_some_and(|limit| began.elapsed() > limit) {
            return;
        }
        let (is_right, result) = match (tree.judge(edit, &limits), edit.survives) {
            (Verdict::Killed(test), None) => (true, format!("killed by {test}")),
            (Verdict::Endless(suite), None) => (true, format!("killed: a test does not end in {suite}")),
            (Verdict::Killed(test) | Verdict::Endless(test), Some(_)) => {
                (false, format!("KILLED by {test}, though listed as equal"))
            }
            (Verdict::Survived, Some(why)) => (true, format!("equal: {why}")),
            (Verdict::Survived, None) => (false, "SURVIVED".to_owned()),
            (Verdict::DoesNotCompile, _) => (false, "DOES NOT COMPILE".to_owned()),
        };
        let row = format!("| {} | {} | {result} |", edit.rule, edit.file);
        eprintln!("{row} {} s", began.elapsed().as_secs());
        rows.lock().unwrap().insert(number, (is_right, row));
    });
    let rows = rows.into_inner().unwrap();
    let wrong = rows.values().filter(|(is_right, _)| !is_right).count();
    let lines: Vec<&str> = rows.values().map(|(_, row)| row.as_str()).collect();
    println!(
        "\n| rule removed | file | result |\n|---|---|---|\n{}",
        lines.join("\n")
    );
    println!(
        "\n{} of {} edits in {} s, {wrong} wrong",
        rows.len(),
        chosen.len(),
        began.elapsed().as_secs()
    );
    assert_eq!(wrong, 0, "see the table");
}

/// Works on these items, each of them on the next tree that is free. An item is passed on with its number.
fn share<T: Copy + Sync>(trees: &[Tree], items: &[T], work: impl Fn(&Tree, usize, T) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for tree in trees {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(number) else { break };
                    work(tree, number, *item);
                }
            });
        }
    });
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}: {text:?} is not a number")),
    )
}

/// How long each suite may run before it counts as endless.
type Limits = BTreeMap<&'static str, Duration>;

/// A copy of the crate. It is kept, so that the next run only builds what has changed.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn new(number: usize) -> Tree {
        let trees = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants");
        let tree = Tree {
            root: trees.join(number.to_string()),
        };
        for part in [
            "Cargo.toml",
            "Cargo.lock",
            "ARCHITECTURE.md",
            "README.md",
            "docs",
            "clippy.toml",
            "src",
            "lua",
            "tests",
            "benches",
            "cli",
            "examples",
            "fuzz/seeds",
        ] {
            copy(&root().join(part), &tree.root.join(part));
        }
        tree
    }

    /// Runs a suite once without any edit. It must pass. Returns how long it may run later.
    fn learn(&self, suite: &str) -> Duration {
        assert!(self.build(suite), "does not compile: cargo test {suite}");
        let run = || {
            let began = Instant::now();
            (self.run(suite, "", Duration::from_secs(600)), began.elapsed())
        };
        let passes = |(verdict, _): &(Verdict, Duration)| *verdict == Verdict::Survived;
        // On a busy machine a test can fail by itself.
        let (verdict, time) = Some(run()).filter(passes).unwrap_or_else(run);
        assert_eq!(
            verdict,
            Verdict::Survived,
            "fails without any edit: cargo test {suite}"
        );
        let output = fs::read_to_string(self.root.join("output")).unwrap();
        assert!(has_run_a_test(&output), "no test matches: cargo test {suite}");
        10 * time + Duration::from_secs(20)
    }

    /// Applies the edit, and returns the first verdict other than survival. On a busy machine a test can fail
    /// by itself, so a failure counts only if two of three runs fail.
    fn judge(&self, edit: &Edit, limits: &Limits) -> Verdict {
        let file = self.root.join(edit.file);
        let text = fs::read_to_string(&file).unwrap();
        let edited = edit.applied_to(&text).unwrap();
        for suite in edit.tests {
            // These suites read an edited script at run time, so nothing has to be built for it.
            let at_run_time = if edit.file.starts_with("lua/") && suite.starts_with(super::lua::AGAINST_RULES)
            {
                let other = self.root.join("edited.lua");
                fs::write(&other, &edited).unwrap();
                format!("{}:{}", file.display(), other.display())
            } else {
                fs::write(&file, &edited).unwrap();
                String::new()
            };
            let test = || self.test(suite, &at_run_time, limits[suite]);
            let verdict = test();
            let counts = match &verdict {
                Verdict::Killed(_) => (0..2).any(|_| test() != Verdict::Survived),
                Verdict::Endless(_) | Verdict::DoesNotCompile => true,
                Verdict::Survived => false,
            };
            fs::write(&file, &text).unwrap();
            if counts {
                return verdict;
            }
        }
        Verdict::Survived
    }

    fn test(&self, suite: &str, edited: &str, limit: Duration) -> Verdict {
        if self.build(suite) {
            self.run(suite, edited, limit)
        } else {
            Verdict::DoesNotCompile
        }
    }

    fn build(&self, suite: &str) -> bool {
        let mut build = self.cargo(suite);
        build.arg("--no-run").stderr(Stdio::null());
        build.status().unwrap().success()
    }

    fn run(&self, suite: &str, edited: &str, limit: Duration) -> Verdict {
        let output = self.root.join("output");
        let file = fs::File::create(&output).unwrap();
        let mut run = self.cargo(suite);
        run.stdout(file.try_clone().unwrap())
            .stderr(file)
            .process_group(0);
        if !edited.is_empty() {
            run.env("FAIRLOCK_TEST_EDITED", edited);
        }
        let mut child = run.spawn().unwrap();
        let began = Instant::now();
        loop {
            let ended = child.try_wait().unwrap();
            let red = first_red(&fs::read_to_string(&output).unwrap());
            if let Some(status) = ended {
                return match red {
                    _ if status.success() => Verdict::Survived,
                    red => Verdict::Killed(red.unwrap_or("a test binary that crashed".to_owned())),
                };
            }
            // The other tests need not end. Some of them may never do.
            if red.is_some() || began.elapsed() > limit {
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                child.wait().unwrap();
                return red.map_or(Verdict::Endless(suite.to_owned()), Verdict::Killed);
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn cargo(&self, suite: &str) -> Command {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .current_dir(&self.root)
            .args(["test", "--all-features", "--quiet"])
            .args(suite.split(' '))
            // The copy has a target folder of its own. Otherwise cargo would take the build of one tree for
            // that of the other.
            .env("CARGO_TARGET_DIR", self.root.join("target"))
            // Nobody looks at these programs with a debugger, and they are linked sooner without.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            // Any failure counts, so there is no need to shrink it.
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            // Enough cases to see every kind of reply; more would take too long with so many edits.
            .env("PROPTEST_CASES", "2000")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        cargo
    }
}

/// Writes only the files that differ, so that unchanged files are not built again.
fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(to).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && !from.join(path.file_name().unwrap()).exists() {
                fs::remove_file(path).unwrap();
            }
        }
        for entry in fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        let text = fs::read(from).unwrap();
        if fs::read(to).ok().as_ref() != Some(&text) {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::write(to, text).unwrap();
        }
    }
}

/// The first test that libtest reports as failed.
fn first_red(output: &str) -> Option<String> {
    let red = |line: &str| line.trim().strip_suffix(" --- FAILED").map(str::to_owned);
    output.lines().find_map(red)
}

/// Whether a test has passed. A suite whose tests were renamed would miss every edit.
fn has_run_a_test(output: &str) -> bool {
    let passed = |line: &str| Some(line.strip_prefix("test result: ok. ")?.split(' ').next()? != "0");
    output.lines().filter_map(passed).any(|has_passed| has_passed)
}
