//! Mutation tests: each edit removes one guard from a copy of the tree, and then some test must fail.
//!
//! Edits quote the code, and the code changes. So the run first reports all edits that no longer apply, which
//! allows fixing them at once after a renaming. A whole run takes long: `scripts/campaign mutants`.

mod cli;
mod client;
mod credentials;
#[cfg(unix)]
mod gate;
mod jobs;
mod leaders;
mod local;
mod lua;
mod metrics;
mod permits;
mod quorum;
mod sets;
mod store;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The removal of one guard.
#[derive(Clone, Copy, Debug)]
struct Edit {
    /// The rule that no longer holds.
    rule: &'static str,
    file: &'static str,
    /// This text is in the file exactly once.
    cut: &'static str,
    put: &'static str,
    /// Arguments of `cargo test`, with the quickest first. At least one of these runs must fail.
    tests: &'static [&'static str],
    /// The reason why no test can notice the edit. It is an error if one does.
    survives: Option<&'static str>,
}

const fn edit(
    rule: &'static str,
    file: &'static str,
    cut: &'static str,
    put: &'static str,
    tests: &'static [&'static str],
) -> Edit {
    Edit {
        rule,
        file,
        cut,
        put,
        tests,
        survives: None,
    }
}

impl Edit {
    /// An edit that no test can notice.
    const fn equal(self, why: &'static str) -> Edit {
        Edit {
            survives: Some(why),
            ..self
        }
    }

    fn check(&self) -> Result<String, String> {
        // The text is empty if the file is gone.
        let text = fs::read_to_string(root().join(self.file)).unwrap_or_default();
        self.applied_to(&text)
    }

    fn applied_to(&self, text: &str) -> Result<String, String> {
        match text.matches(self.cut).count() {
            1 if self.cut != self.put => Ok(text.replacen(self.cut, self.put, 1)),
            found => Err(format!(
                "{}: {:?} occurs {found} times ({})",
                self.file, self.cut, self.rule
            )),
        }
    }
}

fn edits() -> impl Iterator<Item = &'static Edit> {
    (lua::EDITS.iter().chain(client::EDITS))
        .chain(jobs::EDITS)
        .chain(credentials::EDITS)
        .chain(leaders::EDITS)
        .chain(local::EDITS)
        .chain(permits::EDITS)
        .chain(quorum::EDITS)
        .chain(sets::EDITS)
        .chain(metrics::EDITS)
        .chain(store::EDITS)
        .chain(cli::EDITS)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_rule_is_named_once_and_every_script_is_edited() {
    let rules: BTreeSet<_> = edits().map(|edit| edit.rule).collect();
    assert_eq!(rules.len(), edits().count(), "two edits have the same name");
    for dir in ["lua", "lua/lib"] {
        for file in fs::read_dir(root().join(dir)).unwrap() {
            let path = file.unwrap().path();
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            let is_edited = edits().any(|edit| edit.file == name);
            assert!(is_edited || !name.ends_with(".lua"), "{name}");
        }
    }
}

/// The paths and texts of all Rust files below this directory.
fn sources(dir: &Path) -> String {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| match path.extension() {
            None if path.is_dir() => format!("{}\n{}", path.display(), sources(&path)),
            Some(rs) if rs == "rs" => format!("{}\n{}", path.display(), fs::read_to_string(&path).unwrap()),
            _ => String::new(),
        })
        .collect()
}

/// A test that was renamed would be found missing only after the first hour of a run.
#[test]
fn the_tests_that_an_edit_names_are_there() {
    let targets = [
        ("--lib ", "src"),
        ("--test promises ", "tests/promises"),
        ("--test servers ", "tests/servers"),
        ("--test face ", "tests/face"),
        ("--package fairlock-cli --test commands ", "cli/tests/commands"),
        ("--package fairlock-cli --bin fairlock ", "cli/src"),
    ];
    let sources = targets.map(|(target, dir)| (target, sources(&root().join(dir))));
    for suite in edits().flat_map(|edit| edit.tests) {
        let found = sources
            .iter()
            .find_map(|(target, text)| Some((suite.strip_prefix(target)?, text)));
        let (filters, text) = found.unwrap_or_else(|| panic!("no such target: {suite}"));
        for word in filters.split([' ', ':']).filter(|word| !word.is_empty()) {
            assert!(text.contains(word), "no test matches {word:?} of {suite:?}");
        }
    }
}
