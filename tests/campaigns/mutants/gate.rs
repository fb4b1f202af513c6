//! The gate: edit by edit, on a copy of the tree.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{Edit, edits, root};

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// By a test of this name.
    Killed(String),
    /// A test of this suite does not come to its end.
    Endless(String),
    Survived,
    DoesNotCompile,
}

#[test]
#[ignore = "takes an hour or two: scripts/campaign mutants"]
fn every_edit_is_killed_or_explained() {
    let began = Instant::now();
    let stale: Vec<String> = edits().filter_map(|edit| edit.check().err()).collect();
    assert!(stale.is_empty(), "edits that do not apply any more: {stale:#?}");
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

    let mut tree = Tree::new();
    for suite in chosen.iter().flat_map(|edit| edit.tests) {
        tree.learn(suite);
    }

    let (mut rows, mut wrong) = (Vec::new(), 0);
    for edit in &chosen {
        if limit.is_some_and(|limit| began.elapsed() > limit) {
            break;
        }
        let (is_right, result) = match (tree.judge(edit), edit.survives) {
            (Verdict::Killed(test), None) => (true, format!("killed by {test}")),
            (Verdict::Endless(suite), None) => (true, format!("killed: a test does not end in {suite}")),
            (Verdict::Killed(test) | Verdict::Endless(test), Some(_)) => {
                (false, format!("KILLED by {test}, though listed as equal"))
            }
            (Verdict::Survived, Some(why)) => (true, format!("equal: {why}")),
            (Verdict::Survived, None) => (false, "SURVIVED".to_owned()),
            (Verdict::DoesNotCompile, _) => (false, "DOES NOT COMPILE".to_owned()),
        };
        wrong += usize::from(!is_right);
        let row = format!("| {} | {} | {result} |", edit.rule, edit.file);
        eprintln!("{row} {} s", began.elapsed().as_secs());
        rows.push(row);
    }
    println!(
        "\n| rule taken away | file | result |\n|---|---|---|\n{}",
        rows.join("\n")
    );
    println!(
        "\n{} of {} edits in {} s, {wrong} wrong",
        rows.len(),
        chosen.len(),
        began.elapsed().as_secs()
    );
    assert_eq!(wrong, 0, "see the table");
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}: {text:?} is no number")),
    )
}

/// A copy of the crate. It stays, so that the next run builds only what has changed.
struct Tree {
    root: PathBuf,
    /// How long a suite may run before it counts as endless.
    limits: BTreeMap<&'static str, Duration>,
}

impl Tree {
    fn new() -> Tree {
        let tree = Tree {
            root: Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants"),
            limits: BTreeMap::new(),
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
            "examples",
            "fuzz/seeds",
        ] {
            copy(&root().join(part), &tree.root.join(part));
        }
        tree
    }

    /// Runs a suite without any edit, once: it must be green, and its time is the measure of what takes too long.
    fn learn(&mut self, suite: &'static str) {
        if self.limits.contains_key(suite) {
            return;
        }
        assert!(self.build(suite), "does not compile: cargo test {suite}");
        let began = Instant::now();
        let verdict = self.run(suite, "", Duration::from_secs(600));
        assert_eq!(
            verdict,
            Verdict::Survived,
            "red without any edit: cargo test {suite}"
        );
        let limit = 10 * began.elapsed() + Duration::from_secs(20);
        self.limits.insert(suite, limit);
    }

    /// The first verdict other than survival, with the edit in place. A busy machine can turn a test red by itself, so
    /// red counts when it comes twice in three runs.
    fn judge(&self, edit: &Edit) -> Verdict {
        let file = self.root.join(edit.file);
        let text = fs::read_to_string(&file).unwrap();
        let edited = edit.applied_to(&text).unwrap();
        for suite in edit.tests {
            // That one takes an edited script at run time, so that nothing must be built for it.
            let at_run_time = if edit.file.starts_with("lua/") && *suite == super::lua::AGAINST_RULES {
                let other = self.root.join("edited.lua");
                fs::write(&other, &edited).unwrap();
                format!("{}:{}", file.display(), other.display())
            } else {
                fs::write(&file, &edited).unwrap();
                String::new()
            };
            let verdict = self.test(suite, &at_run_time);
            let counts = match &verdict {
                Verdict::Killed(_) => (0..2).any(|_| self.test(suite, &at_run_time) != Verdict::Survived),
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

    fn test(&self, suite: &str, edited: &str) -> Verdict {
        if self.build(suite) {
            self.run(suite, edited, self.limits[suite])
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
            // The other tests need not come to their end, which some of them may never do.
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
            // Of its own: cargo would take what it has built of the one tree for that of the other.
            .env("CARGO_TARGET_DIR", self.root.join("target"))
            // A failure is all that counts, not the smallest.
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            // Enough to come to every kind of reply, and there are many edits.
            .env("PROPTEST_CASES", "2000")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        cargo
    }
}

/// Writes only what differs: what has not changed is not built again.
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

/// The first test that libtest tells the failure of.
fn first_red(output: &str) -> Option<String> {
    let red = |line: &str| line.trim().strip_suffix(" --- FAILED").map(str::to_owned);
    output.lines().find_map(red)
}
