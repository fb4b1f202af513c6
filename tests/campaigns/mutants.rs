//! Mutation tests: each edit removes one guard from a copy of the tree, and then some test must fail.
//!
//! Edits quote the code, and the code changes. So an edit quotes little, and names the function in which that
//! stands once. The run first reports all edits that no longer apply, which allows fixing them at once after
//! a renaming. A whole run takes long: `scripts/campaign mutants`.

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
use std::ops::Range;
use std::path::Path;

/// The removal of one guard.
#[derive(Clone, Copy, Debug)]
struct Edit {
    /// The rule that no longer holds.
    rule: &'static str,
    file: &'static str,
    /// The function that is edited. Without one, it is any part of the file.
    function: Option<&'static str>,
    /// This text is there exactly once.
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
        function: None,
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

    /// An edit within the only function of this name.
    const fn within(self, function: &'static str) -> Edit {
        Edit {
            function: Some(function),
            ..self
        }
    }

    fn check(&self) -> Result<String, String> {
        // The text is empty if the file is gone.
        let text = fs::read_to_string(root().join(self.file)).unwrap_or_default();
        self.applied_to(&text)
    }

    fn applied_to(&self, text: &str) -> Result<String, String> {
        let Edit { cut, put, rule, .. } = self;
        let wrong = |what: String| Err(format!("{}: {what} ({rule})", self.file));
        let part = match self.function {
            None => 0..text.len(),
            Some(name) => match &*functions(text, name) {
                [part] => part.clone(),
                found => return wrong(format!("{} functions have the name {name:?}", found.len())),
            },
        };
        match text[part.clone()].matches(cut).count() {
            1 if cut != put => {
                let edited = text[part.clone()].replacen(cut, put, 1);
                Ok([&text[..part.start], &edited, &text[part.end..]].concat())
            }
            found => wrong(format!("{cut:?} occurs {found} times")),
        }
    }
}

/// The places of the functions with this name, in Rust or Lua.
fn functions(text: &str, name: &str) -> Vec<Range<usize>> {
    let begins = ["fn ", "function ", "."].map(|before| format!("{before}{name}"));
    let mut found = Vec::new();
    let (mut start, mut open) = (0, None);
    for line in text.split_inclusive('\n') {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let is_begin = |begin: &String| {
            line.find(begin.as_str())
                .is_some_and(|at| line[at + begin.len()..].starts_with(['(', '<']))
        };
        let is_function = code.contains("fn ") || code.contains("function ");
        match open {
            None if is_function && begins.iter().any(is_begin) => open = Some((start, indent)),
            Some((from, at)) if indent == at && ["}", "end"].contains(&code.trim_end()) => {
                found.push(from..start + line.len());
                open = None;
            }
            _ => {}
        }
        start += line.len();
    }
    found
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
